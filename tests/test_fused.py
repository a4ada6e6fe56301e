"""The fused training pass against the modules it stands for, and its products against double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro.config import TransformerConfig
from repro.models import fused, fused_attention, products
from repro.models.build import build_model
from repro.models.transformer import Transformer

VOCABULARY = 30
LIBRARIES = ["mkl", "onednn"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 60},
    {"positions": "none"},
    {"sinusoid_layout": "concatenated"},
    {"n_heads": 3, "d_k": 2, "d_v": 5},
    {"n_heads": 1},
    {"scale_attention": False, "attention_bias": False},
    {"causal_mask": False},
    {"dropout": 0.0},
    {"attention_dropout": 0.2, "activation_dropout": 0.3},
    {"norm": "pre", "d_k": 3, "attention_dropout": 0.2, "causal_mask": False},
]


@pytest.fixture(params=LIBRARIES)
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(products, "library", lambda: request.param)
    return str(request.param)


def model(fused: bool, dtype: torch.dtype = torch.float32, **options: Any) -> Transformer:
    """A model whose biases and norms are not 0 and 1, so that a wrong one shows."""
    config = TransformerConfig(**{"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 4, "dropout": 0.2, **options})
    made = build_model(config, VOCABULARY, 1).to(dtype).train()
    assert isinstance(made, Transformer)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    made.fused = fused
    made.random.seed(3)
    return made


def batch(src_lengths: tuple[int, ...], tgt_lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    sides = []
    for lengths in (src_lengths, tgt_lengths):
        side = torch.randint(4, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
        for row, length in enumerate(lengths):
            side[row, length:] = 0
        sides.append(side)
    return sides[0], sides[1]


BATCHES = {
    "few keys, padded": batch((7, 4, 6), (5, 6, 2)),
    "few keys, full": batch((6, 6, 6), (5, 5, 5)),
    "many keys, padded": batch((20, 41, 3, 17), (37, 8, 9, 30)),
    "many keys, full": batch((18, 18), (19, 19)),
}


def passed(made: Transformer, src: Tensor, tgt: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states of real positions, and every parameter's gradient of a fixed combination of them."""
    real = tgt != 0
    hidden = made(src, src != 0, tgt)[real]
    share = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2)).to(hidden.dtype)
    (hidden * share).sum().backward()
    gradients = {}
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    return hidden.detach(), gradients


def assert_equal(options: dict[str, Any], src: Tensor, tgt: Tensor, dtype: torch.dtype, tolerance: float) -> None:
    expected, right = passed(model(False, dtype, **options), src, tgt)
    hidden, gradients = passed(model(True, dtype, **options), src, tgt)
    torch.testing.assert_close(hidden, expected, atol=tolerance, rtol=tolerance)
    for name in right:
        torch.testing.assert_close(gradients[name], right[name], atol=10 * tolerance, rtol=10 * tolerance, msg=name)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", list(BATCHES))
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_are_those_of_the_modules_with_the_same_dropout(
    options: dict[str, Any], shape: str
) -> None:
    assert_equal(options, *BATCHES[shape], torch.float32, 3e-6)


@pytest.mark.parametrize("options", OPTIONS)
def test_in_double_precision_they_are_equal_to_twelve_digits(options: dict[str, Any]) -> None:
    assert_equal(options, *BATCHES["few keys, padded"], torch.float64, 1e-12)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("limit", [0, 10**6])
@pytest.mark.parametrize("options", [{}, {"causal_mask": False}, {"d_k": 6}])
def test_both_ways_to_attend_give_them(options: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention, "PACKED", limit)
    for src, tgt in BATCHES.values():
        assert_equal(options, src, tgt, torch.float32, 3e-6)


@pytest.mark.usefixtures("library")
def test_the_same_pass_gives_the_same_bits() -> None:
    first, second = (passed(model(True), *BATCHES["many keys, padded"]) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_gradients_accumulate() -> None:
    made = model(True, dropout=0.0)
    _, once = passed(made, *BATCHES["few keys, full"])
    once = {name: gradient.clone() for name, gradient in once.items()}
    _, twice = passed(made, *BATCHES["few keys, full"])
    for name in once:
        torch.testing.assert_close(twice[name], 2 * once[name])


def test_where_it_does_not_serve_the_modules_do(monkeypatch: pytest.MonkeyPatch) -> None:
    src, tgt = BATCHES["few keys, padded"]

    def never(*_: Any) -> Tensor:
        raise AssertionError

    monkeypatch.setattr(fused, "hidden_states", never)
    made = model(True)
    with torch.no_grad():
        made(src, src != 0, tgt)
    with torch.autocast("cpu", torch.bfloat16):
        made(src, src != 0, tgt)
    empty = src.clone()
    empty[1] = 0
    made(empty, empty != 0, tgt)
    meta = build_model(made.config, VOCABULARY, 1, device="meta").train()
    meta.fused = True
    meta(src.to("meta"), (src != 0).to("meta"), tgt.to("meta"))
    made.eval()
    made(src, src != 0, tgt)
    with pytest.raises(AssertionError):
        made.train()(src, src != 0, tgt)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("rows", "wide", "out"), [(1, 3, 5), (7, 16, 4), (64, 8, 48), (530, 32, 20)])
def test_products_are_those_of_double_precision(rows: int, wide: int, out: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias, grad = (
        torch.randn(*shape, generator=generator) for shape in ((rows, wide), (out, wide), (out,), (rows, out))
    )
    exact = x.double() @ weight.double().t()
    for got, expected in (
        (products.linear(x, weight), exact),
        (products.linear(x, weight, bias), exact + bias),
        (products.linear(x, weight, bias, relu=True), (exact + bias).clamp(min=0.0)),
        (products.input_gradient(grad, weight), grad.double() @ weight.double()),
        (products.weight_gradient(grad, x), grad.double().t() @ x.double()),
    ):
        assert got.is_contiguous()
        torch.testing.assert_close(got, expected.float(), atol=2e-5, rtol=1e-5)


def test_products_come_in_few_sizes_that_hold_little_more_than_is_needed(library: str) -> None:
    sizes = [products.room(rows) for rows in range(1, 4097)]
    assert all(rows <= size <= rows * (1 + 1 / 16) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= (16 * 9 if library == "onednn" else 4096)
