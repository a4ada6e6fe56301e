"""Parameters, FLOPs, memory and peaks against the paper, torch's operator counter and counts by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from repro.accounting.flops import Flops, Lengths, forward_flops, train_flops
from repro.accounting.memory import memory_bytes
from repro.accounting.parameters import parameters
from repro.accounting.peaks import GPUS, PAPER_SUSTAINED_FLOPS, paper_method_flops, peak_flops
from repro.config import TrainConfig, TransformerConfig
from repro.models.build import build_model

PIECES = 40_960

TABLE_3: list[tuple[str, dict[str, Any], float]] = [
    ("base", {}, 65.11),
    ("A.h1", {"n_heads": 1}, 65.11),
    ("A.h4", {"n_heads": 4}, 65.11),
    ("A.h16", {"n_heads": 16}, 65.11),
    ("A.h32", {"n_heads": 32}, 65.11),
    ("B.dk-quarter", {"d_k": 16, "d_v": 64}, 58.02),
    ("B.dk-half", {"d_k": 32, "d_v": 64}, 60.38),
    ("C.layers-third", {"n_layers": 2}, 35.68),
    ("C.layers-2third", {"n_layers": 4}, 50.40),
    ("C.layers-4third", {"n_layers": 8}, 79.82),
    ("C.width-half", {"d_model": 256, "d_k": 32, "d_v": 32}, 27.85),
    ("C.width-double", {"d_model": 1024, "d_k": 128, "d_v": 128}, 167.94),
    ("C.ff-half", {"d_ff": 1024}, 52.51),
    ("C.ff-double", {"d_ff": 4096}, 90.30),
    ("D.dropout-0", {"dropout": 0.0}, 65.11),
    ("D.dropout-double", {"dropout": 0.2}, 65.11),
    ("D.smoothing-0", {}, 65.11),
    ("D.smoothing-double", {}, 65.11),
    # Two tables of 1024 rows of 512 come on top of base.
    ("E.learned", {"positions": "learned"}, 65.11 + 2 * 1024 * 512 / 1e6),
    ("big", {"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 218.30),
]


@pytest.mark.parametrize(("options", "millions"), [row[1:] for row in TABLE_3], ids=[row[0] for row in TABLE_3])
def test_every_row_of_table_3_has_its_published_parameters(options: dict[str, Any], millions: float) -> None:
    assert parameters(TransformerConfig(**options), PIECES) / 1e6 == pytest.approx(millions, abs=0.0051)


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({}, 0),
        # Two final LayerNorms of gain and bias.
        ({"norm": "pre"}, 2 * 2 * 512),
        # 18 attentions lose the biases of W^Q, W^K, W^V and W^O.
        ({"attention_bias": False}, -18 * 4 * 512),
        ({"positions": "none"}, 0),
        ({"positions": "learned", "max_positions": 100}, 2 * 100 * 512),
        ({"scale_attention": False}, 0),
        ({"causal_mask": False}, 0),
    ],
)
def test_options_add_the_parameters_that_they_should(options: dict[str, Any], extra: int) -> None:
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    base = PIECES * 512 + 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert parameters(TransformerConfig(**options), PIECES) == base + extra


def test_parameters_are_counted_without_being_allocated() -> None:
    d = 1 << 17
    config = TransformerConfig(n_layers=1, d_model=d, d_ff=d, n_heads=1, attention_bias=False)
    # 1.1 TB of weights in 32 bits, and as much for each gradient: they are not there.
    assert parameters(config, 1000) == 1000 * d + 16 * d * d + 4 * d + 5 * 2 * d


# FLOPs

COUNTED: list[dict[str, Any]] = [
    {},
    {"n_heads": 1},
    {"n_heads": 8},
    {"n_heads": 3, "d_k": 2, "d_v": 7},
    {"n_heads": 2, "d_k": 9, "d_v": 4},
    {"norm": "pre"},
    {"n_layers": 1, "d_ff": 8},
    {"positions": "learned", "max_positions": 20},
    {"positions": "none", "scale_attention": False, "attention_bias": False},
    {"attention_dropout": 0.1, "activation_dropout": 0.2, "dropout": 0.0},
    {"attention_dropout": 0.1},
    {"activation_dropout": 0.1},
    {"sinusoid_layout": "concatenated"},
    {"scale_attention": False},
    {"causal_mask": False},
    {"attention_bias": False},
    {"n_layers": 3, "d_model": 16, "d_ff": 20, "n_heads": 2, "d_k": 5, "d_v": 3, "norm": "pre", "positions": "none"},
]


def test_every_option_of_the_model_is_among_those_counted() -> None:
    changed = {name for options in COUNTED for name in options}
    assert changed == {field.name for field in dataclasses.fields(TransformerConfig)} - {"family"}


@pytest.mark.parametrize("options", COUNTED, ids=str)
@pytest.mark.parametrize("sizes", [(3, 9, 7), (2, 5, 11)])
def test_flops_equal_those_that_torch_counts(options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    config = TransformerConfig(**{"n_layers": 2, "d_model": 24, "d_ff": 40, "n_heads": 4, **options})
    sentences, src_len, tgt_len = sizes
    model = build_model(config, 50, seed=1, device="meta")
    src, tgt = (torch.zeros(sentences, length, dtype=torch.long, device="meta") for length in (src_len, tgt_len))
    with FlopCounterMode(display=False) as counter:
        logits = model.project(model(src, src != 0, tgt))
        forward = counter.get_total_flops()
        logits.sum().backward()
    lengths = Lengths.rectangle(*sizes)
    assert forward_flops(config, 50, lengths).total == forward
    assert train_flops(config, 50, lengths).total == counter.get_total_flops()


@pytest.mark.parametrize("padded", [False, True])
def test_a_cpu_counts_the_same_where_attention_is_spelled_out(padded: bool) -> None:
    """Fused attention hides its products from torch's counter on a CPU; its MATH backend does not."""
    config = TransformerConfig(n_layers=2, d_model=24, d_ff=40, n_heads=4)
    model = build_model(config, 50, seed=1)
    src, tgt = torch.full((3, 9), 5), torch.full((3, 7), 5)
    src[1, 5:] = 0 if padded else 5
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model.project(model(src, src != 0, tgt))
        forward = counter.get_total_flops()
        logits.sum().backward()
    lengths = Lengths.rectangle(3, 9, 7)
    assert forward_flops(config, 50, lengths).total == forward
    assert train_flops(config, 50, lengths).total == counter.get_total_flops()


def test_flops_of_a_batch_without_padding_are_the_sum_of_its_sentences_alone() -> None:
    config = TransformerConfig(n_layers=2, d_model=24, d_ff=40, n_heads=4)
    model = build_model(config, 50, seed=1, device="meta")
    lengths, total = [(4, 9), (11, 3), (1, 1)], 0
    for src_len, tgt_len in lengths:
        src, tgt = (torch.zeros(1, length, dtype=torch.long, device="meta") for length in (src_len, tgt_len))
        with FlopCounterMode(display=False) as counter:
            model.project(model(src, src != 0, tgt)).sum().backward()
        total += counter.get_total_flops()
    src_lengths, tgt_lengths = torch.tensor(lengths).T
    assert train_flops(config, 50, Lengths.of(src_lengths, tgt_lengths)).total == total


def test_flops_go_where_they_belong() -> None:
    config = TransformerConfig(n_layers=1, d_model=2, d_ff=3, n_heads=1, d_k=5, d_v=7)
    # W^Q and W^K have 10 weights, W^V and W^O 14, the feed-forward layer 12; a multiply-add is two operations.
    encoder, memory, decoder = 10 + 10 + 14 + 14 + 12, 10 + 14, (10 + 10 + 14 + 14) + (10 + 14) + 12
    assert forward_flops(config, 11, Lengths.rectangle(1, 4, 6)) == Flops(
        source=2 * 4 * (encoder + memory),
        target=2 * 6 * decoder,
        attention=2 * (5 + 7) * (16 + 36 + 24),
        softmax=2 * 6 * 2 * 11,
    )


def test_lengths_are_sums_over_sentences() -> None:
    src, tgt = torch.tensor([3, 5]), torch.tensor([4, 2])
    lengths = Lengths.of(src, tgt)
    assert lengths == Lengths(sentences=2, src=8, tgt=6, src_src=34, src_tgt=22, tgt_tgt=20)
    assert lengths == Lengths.of(src.numpy(), tgt.numpy())
    assert lengths == Lengths.rectangle(1, 3, 4) + Lengths.rectangle(1, 5, 2)


def test_training_base_as_the_paper_did_costs_about_one_exaflop() -> None:
    sentences = 25_000 // 25
    step = train_flops(TransformerConfig(), 37_000, Lengths.rectangle(sentences, 25, 25))
    assert 100_000 * step.total == pytest.approx(0.98e18, rel=0.05)


def test_the_papers_own_method_gives_its_printed_costs() -> None:
    p100 = PAPER_SUSTAINED_FLOPS["P100"]
    assert paper_method_flops(12 * 3600, 8, p100) == pytest.approx(3.28e18, rel=2e-3)
    assert paper_method_flops(3.5 * 86400, 8, p100) == pytest.approx(2.30e19, rel=2e-3)


# Memory


def saved_bytes(config: TransformerConfig, sentences: int, length: int) -> int:
    """Bytes that autograd keeps for the backward pass, parameters apart."""
    model = build_model(config, 40, seed=1)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    src = torch.full((sentences, length), 5)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(src, src != 0, src)
    assert hidden.requires_grad
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


@pytest.mark.parametrize(
    "options", [{}, {"norm": "pre"}, {"dropout": 0.0}, {"attention_dropout": 0.1, "activation_dropout": 0.1}], ids=str
)
def test_memory_grows_with_the_batch_by_what_the_backward_pass_keeps(options: dict[str, Any]) -> None:
    config = TransformerConfig(**{"n_layers": 3, "d_model": 64, "d_ff": 256, "n_heads": 4, **options})
    larger, smaller = (memory_bytes(config, 40, TrainConfig(batch_tokens=n, precision="fp32")) for n in (512, 256))
    assert larger - smaller == pytest.approx(saved_bytes(config, 8, 32), rel=0.15)


def test_memory_holds_four_numbers_a_parameter_and_follows_the_micro_batch() -> None:
    config = TransformerConfig()
    whole = memory_bytes(config, PIECES, TrainConfig(precision="fp32"))
    small = memory_bytes(config, PIECES, TrainConfig(precision="fp32", micro_batch_tokens=1))
    assert 16 * 65_110_016 < small < 1.1 * 16 * 65_110_016
    assert small < whole
    assert whole == memory_bytes(config, PIECES, TrainConfig(precision="fp32", micro_batch_tokens=99_000))
    assert memory_bytes(config, PIECES, TrainConfig(precision="bf16")) < whole


# Peaks


def test_known_gpus_have_their_printed_peaks_under_the_drivers_names_too() -> None:
    assert peak_flops("A100") == peak_flops("NVIDIA A100-SXM4-80GB") == peak_flops("NVIDIA A100 80GB PCIe") == 312e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("h100 sxm") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H200") == 989.4e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == peak_flops("RTX 4090") == 165.2e12
    assert peak_flops("NVIDIA L4") == 121e12


@pytest.mark.parametrize(
    "name",
    ["", "H100", "Tesla V100-SXM2-16GB", "NVIDIA A1000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "RTX 4090 D", "cpu"],
)
def test_an_unknown_or_ambiguous_gpu_has_no_peak(name: str) -> None:
    assert peak_flops(name) is None


def test_no_gpu_answers_to_anothers_name() -> None:
    for gpu in GPUS:
        assert peak_flops(gpu.name) == gpu.bf16
