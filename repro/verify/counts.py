"""Parameters, FLOPs and training cost: the paper's table, counts by hand and torch's operator counter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from repro.accounting import flops, parameters, peaks
from repro.accounting.flops import Lengths
from repro.config import ModelConfig, TransformerConfig
from repro.models.build import build_model
from repro.verify.check import Claim, equal, near
from repro.verify.toys import FAMILIES, PUBLISHED, tiny

PIECES = 40_960
"""Shared pieces with which the counts come to the paper's."""

_MILLIONS: dict[str, tuple[dict[str, Any], float]] = {
    "base": ({}, 65.11),
    "B.dk-quarter": ({"d_k": 16, "d_v": 64}, 58.02),
    "B.dk-half": ({"d_k": 32, "d_v": 64}, 60.38),
    "C.layers-third": ({"n_layers": 2}, 35.68),
    "C.layers-2third": ({"n_layers": 4}, 50.40),
    "C.layers-4third": ({"n_layers": 8}, 79.82),
    "C.width-half": ({"d_model": 256, "d_k": 32, "d_v": 32}, 27.85),
    "C.width-double": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 167.94),
    "C.ff-half": ({"d_ff": 1024}, 52.51),
    "C.ff-double": ({"d_ff": 4096}, 90.30),
    "big": ({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 218.30),
}
"""Rows of Table 3 that differ in parameters: what they change, and their parameters in millions at PIECES."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm": "pre"},
    "learned-positions": {"positions": "learned", "max_positions": 20},
    "no-positions": {"positions": "none"},
    "concatenated-sinusoids": {"sinusoid_layout": "concatenated"},
    "one-head": {"n_heads": 1},
    "d_k-not-d_v": {"n_heads": 3, "d_k": 2, "d_v": 7},
    "unscaled-no-bias": {"scale_attention": False, "attention_bias": False},
    "all-dropouts": {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
}
_COUNTER = "torch's FlopCounterMode on the meta device"
_SENTENCES, _SRC, _TGT = 3, 5, 4

STEPS, TOKENS = 100_000, 25_000
"""The paper's base training: updates, and tokens a side in each (section 5)."""


def _claims() -> tuple[Claim, ...]:
    claims = [
        near(
            f"parameters.{name}",
            f"{name}: millions of parameters at {PIECES:,} shared pieces",
            source="Table 3, counted by hand",
            expected=millions,
            got=partial(_millions, changes),
            within=0.0051,
        )
        for name, (changes, millions) in _MILLIONS.items()
    ]
    for family in FAMILIES:
        claims += _flops_claims(f"flops.{family}", f"{family}, small", partial(tiny, family), 40)
        published = partial(PUBLISHED.__getitem__, family)
        claims += _flops_claims(f"flops.{family}-published", f"{family} at its paper's size", published, 1000)[1:]
    for name, changes in _OPTIONS.items():
        claims += _flops_claims(f"flops.transformer-{name}", f"Transformer, {name}", partial(_option, changes), 40)
    return (*claims, *_cost_claims())


def _flops_claims(id: str, title: str, config: Callable[[], ModelConfig], vocabulary: int) -> list[Claim]:
    return [
        equal(
            f"{id}-{name}",
            f"FLOPs of {words}, {title}",
            source=_COUNTER,
            expected=partial(_counted, config, vocabulary, backward),
            got=partial(_analytic, config, vocabulary, backward),
        )
        for name, words, backward in (("forward", "forward", False), ("train", "forward and backward", True))
    ]


def _cost_claims() -> tuple[Claim, ...]:
    return (
        near(
            "cost.paper-method-base",
            "base, the paper's method: 12 h on 8 P100",
            source="section 6.1, footnote 5: 12 h x 8 x 9.5e12",
            expected=3.28e18,
            got=lambda: peaks.paper_method_flops(12 * 3600, 8, peaks.PAPER_SUSTAINED_FLOPS["P100"]),
            within=0.005e18,
        ),
        near(
            "cost.paper-method-big",
            "big, the paper's method: 3.5 days on 8 P100",
            source="section 6.1, footnote 5: 3.5 d x 8 x 9.5e12",
            expected=2.30e19,
            got=lambda: peaks.paper_method_flops(3.5 * 24 * 3600, 8, peaks.PAPER_SUSTAINED_FLOPS["P100"]),
            within=0.005e19,
        ),
        near(
            "cost.counted-base",
            f"base, counted: {STEPS:,} updates of {TOKENS:,} + {TOKENS:,} tokens, forward and backward",
            source="by hand: 6 for each weight that a token meets (65.0e6 a pair of tokens), and 1 % for attention",
            expected=0.98e18,
            got=_counted_base,
            within=0.03e18,
        ),
    )


def _option(changes: dict[str, Any]) -> ModelConfig:
    return TransformerConfig(**({"n_layers": 2, "d_model": 24, "d_ff": 40, "n_heads": 4} | changes))


def _millions(changes: dict[str, Any]) -> float:
    return parameters.parameters(TransformerConfig(**changes), PIECES) / 1e6


def _counted(config: Callable[[], ModelConfig], vocabulary: int, backward: bool) -> int:
    model = build_model(config(), vocabulary, seed=0, device="meta")
    src, tgt = (torch.zeros(_SENTENCES, length, dtype=torch.int64, device="meta") for length in (_SRC, _TGT))
    with FlopCounterMode(display=False) as counter:
        logits = model.project(model(src, src != 0, tgt))
        if backward:
            torch.autograd.backward(logits.sum())
    return int(counter.get_total_flops())


def _analytic(config: Callable[[], ModelConfig], vocabulary: int, backward: bool) -> int:
    lengths = Lengths.rectangle(_SENTENCES, _SRC, _TGT)
    count = flops.train_flops if backward else flops.forward_flops
    return count(config(), vocabulary, lengths).total


def _counted_base() -> float:
    """Sentences of 30 pieces whose lengths spread by about 0.55 of their mean, as in news."""
    count = TOKENS // 30
    lengths = Lengths(count, TOKENS, TOKENS, count * 1170, count * 1150, count * 1170)
    return float(STEPS * flops.train_flops(TransformerConfig(), PIECES, lengths).total)


CLAIMS: tuple[Claim, ...] = _claims()
