"""The fused training pass against the modules it stands for."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from repro.accounting import memory
from repro.bench.shapes import SHAPES
from repro.config import TrainConfig, TransformerConfig
from repro.models import fused, fused_attention, products
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.shortage import is_shortage
from repro.training.loss import smoothed_loss
from repro.training.trainer import Trainer

VOCABULARY = 30
LIBRARIES = ["mkl", "onednn"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "learned", "max_positions": 60},
    {"positions": "none"},
    {"sinusoid_layout": "concatenated"},
    {"n_heads": 3, "d_k": 2, "d_v": 5},
    {"n_heads": 2, "d_k": 3, "d_v": 14},
    {"n_heads": 1},
    {"scale_attention": False, "attention_bias": False},
    {"causal_mask": False},
    {"dropout": 0.0},
    {"d_k": 1, "d_v": 1, "d_ff": 1},
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
    "a sentence alone": batch((9,), (5,)),
    "source of one piece": batch((1, 1), (4, 3)),
    "target of one piece": batch((3, 4), (1, 1)),
    "one piece each": batch((1,), (1,)),
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
        most = 10 * tolerance * max(1.0, float(right[name].abs().max()))
        torch.testing.assert_close(gradients[name], right[name], atol=most, rtol=0.0, msg=name)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", list(BATCHES))
@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_and_gradients_are_those_of_the_modules_with_the_same_dropout(
    options: dict[str, Any], shape: str
) -> None:
    assert_equal(options, *BATCHES[shape], torch.float32, 3e-6)


@pytest.mark.parametrize("options", [*OPTIONS, {"dropout": 0.9}])
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


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Every tensor that torch gives out unwritten is full of NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("library", "filled_memory")
@pytest.mark.parametrize("limit", [0, 10**6])
@pytest.mark.parametrize("options", [{}, {"d_k": 3, "activation_dropout": 0.3}, {"attention_dropout": 0.2}])
def test_what_memory_held_before_is_never_read(
    options: dict[str, Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_attention, "PACKED", limit)
    for src, tgt in BATCHES.values():
        made = model(True, **options)
        loss = smoothed_loss(made(src, src != 0, tgt), tgt, made.output(), smoothing=0.1)
        loss.total.backward()  # type: ignore[no-untyped-call]
        assert loss.total.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in made.parameters() if parameter.grad is not None)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("options", [{}, {"norm": "pre"}])
def test_where_the_modules_give_what_is_not_finite_the_fused_pass_does(options: dict[str, Any]) -> None:
    src, tgt = BATCHES["few keys, padded"]
    for name, _ in model(True, **options).named_parameters():
        finite = []
        for fused_pass in (False, True):
            made = model(fused_pass, **options)
            with torch.no_grad():
                made.get_parameter(name).view(-1)[-1] = torch.nan
            hidden = made(src, src != 0, tgt)[tgt != 0]
            hidden.square().sum().backward()
            gradients = [parameter.grad for parameter in made.parameters() if parameter.grad is not None]
            finite.append(all(bool(x.isfinite().all()) for x in (hidden, *gradients)))
        assert finite[0] == finite[1], name
        assert not finite[1] or name == "embedding", name


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("frozen", [["embedding"], ["embedding", "encoder."], ["norm"], ["qkv", "kv"], ["bias"]])
@pytest.mark.parametrize("options", [{}, {"norm": "pre", "positions": "learned", "max_positions": 60}])
def test_frozen_parameters_have_no_gradient_and_the_others_theirs(options: dict[str, Any], frozen: list[str]) -> None:
    src, tgt = BATCHES["few keys, padded"]
    gradients = []
    for fused_pass in (False, True):
        made = model(fused_pass, **options)
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(not any(part in name for part in frozen))
        made(src, src != 0, tgt)[tgt != 0].square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in made.named_parameters()})
    for name, right in gradients[0].items():
        got = gradients[1][name]
        assert (got is None) == (right is None) == any(part in name for part in frozen), name
        torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.usefixtures("library")
def test_pieces_and_masks_may_be_parts_of_larger_tensors() -> None:
    src, tgt = BATCHES["few keys, padded"]
    _, expected = passed(model(True), src, tgt)
    _, found = passed(model(True), src.t().contiguous().t(), functional.pad(tgt, (1, 2))[:, 1:-2])
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.usefixtures("library")
def test_two_passes_before_one_backward_give_the_sum_of_their_gradients() -> None:
    gradients = []
    for fused_pass in (False, True):
        made = model(fused_pass)
        parts = []
        for shape in ("few keys, padded", "many keys, padded"):
            src, tgt = BATCHES[shape]
            parts.append(made(src, src != 0, tgt)[tgt != 0].square().sum())
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad for parameter in made.parameters()])
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_a_second_backward_through_a_retained_pass_is_refused() -> None:
    src, tgt = BATCHES["few keys, full"]
    loss = model(True)(src, src != 0, tgt).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_memory_that_runs_out_inside_an_operator_is_a_shortage_and_the_same_model_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src, tgt = BATCHES["few keys, full"]
    _, expected = passed(model(True), src, tgt)
    made = model(True)
    whole = products.input_gradient

    def short(grad: Tensor, weight: Tensor) -> Tensor:
        torch.empty(2**60, dtype=torch.uint8)
        return whole(grad, weight)

    with monkeypatch.context() as patch:
        patch.setattr(fused, "input_gradient", short)
        with pytest.raises(RuntimeError) as told:
            passed(made, src, tgt)
    assert is_shortage(told.value)
    made.zero_grad()
    made.random.seed(3)
    _, gradients = passed(made, src, tgt)
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_only_a_kernel_without_room_is_a_shortage_of_onednns() -> None:
    assert is_shortage(RuntimeError("could not create a primitive"))
    assert is_shortage(RuntimeError("std::bad_alloc"))
    assert not is_shortage(RuntimeError("could not create a primitive descriptor for a matmul primitive"))


def test_the_estimate_of_memory_counts_the_weights_that_the_fused_pass_keeps() -> None:
    assert memory.PACKED_NUMBERS == fused_attention.PACKED

    def growth(on: memory.Kind, **options: Any) -> int:
        """Bytes that 100 positions more take."""
        config = TransformerConfig(n_layers=2, d_model=64, d_ff=128, n_heads=8, **options)
        small, large = (TrainConfig(batch_tokens=n, precision="fp32") for n in (300, 400))
        return memory.memory_bytes(config, 50, large, on=on) - memory.memory_bytes(config, 50, small, on=on)

    weights = 100 * 2 * 3 * 8 * 32 * 4  # layers, attentions of a layer, heads, keys, bytes
    assert growth("cpu") - growth("cuda") == weights
    assert growth("cpu", d_k=4, d_v=100) - growth("cuda", d_k=4, d_v=100) == weights
    assert growth("cpu", d_k=64, d_v=64) == growth("cuda", d_k=64, d_v=64)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("options", [{}, {"dropout": 0.0}, {"norm": "pre"}, {"norm": "pre", "dropout": 0.0}])
def test_neither_its_output_nor_what_backward_is_given_is_written_over(options: dict[str, Any]) -> None:
    for src, tgt in BATCHES.values():
        hidden = model(True, **options)(src, src != 0, tgt)
        given = torch.ones_like(hidden)
        before = hidden.detach().clone()
        hidden.backward(given)
        assert torch.equal(hidden, before)
        assert bool((given == 1.0).all())


@pytest.mark.usefixtures("library")
def test_the_gradient_of_its_output_may_be_laid_out_in_any_way() -> None:
    src, tgt = BATCHES["few keys, padded"]
    gradients = []
    for spread in (False, True):
        made = model(True)
        hidden = made(src, src != 0, tgt)
        given = torch.ones(1).expand(hidden.shape)
        hidden.backward(given if spread else given.contiguous())
        gradients.append([parameter.grad for parameter in made.parameters()])
    for plain, spread_out in zip(*gradients, strict=True):
        assert plain is not None
        assert torch.equal(plain, spread_out)


def test_in_200_updates_each_from_the_same_state_losses_agree_to_one_part_in_a_million() -> None:
    smoke = SHAPES["smoke"]
    small = dataclasses.replace(smoke.model, n_layers=1)
    shape = dataclasses.replace(smoke, model=small, batch_tokens=160, batches=20)
    trainer, reference = (Trainer(shape.config("cpu"), shape.vocabulary_size, torch.device("cpu")) for _ in range(2))
    reference.model.fused = False
    apart = []
    for _ in range(10):
        for micro in shape.round("cpu"):
            expected, found = reference.update(micro), trainer.update(micro)
            apart.append(abs(found.loss / expected.loss - 1.0))
            moments = {name: tensor.clone() for name, tensor in trainer.optimizer_tensors().items()}
            reference.restore(trainer.weights(), moments, copy.deepcopy(trainer.counters))
    assert len(apart) == 200
    assert found.loss < 0.9 * math.log(shape.vocabulary_size)
    assert 0.0 < max(apart) < 1e-6


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
    model(True, torch.bfloat16, positions="none")(src, src != 0, tgt)
    meta = build_model(made.config, VOCABULARY, 1, device="meta").train()
    meta.fused = True
    meta(src.to("meta"), (src != 0).to("meta"), tgt.to("meta"))
    made.eval()
    made(src, src != 0, tgt)
    with pytest.raises(AssertionError):
        made.train()(src, src != 0, tgt)


@pytest.mark.usefixtures("library")
def test_parameters_made_of_others_and_graphs_of_gradients_are_refused() -> None:
    src, tgt = BATCHES["few keys, full"]
    made = model(True)
    doubled = {name: 2.0 * parameter for name, parameter in made.named_parameters()}
    with pytest.raises(RuntimeError, match="computed from them"):
        torch.func.functional_call(made, doubled, (src, src != 0, tgt))
    with pytest.raises(RuntimeError, match="without a graph"):
        torch.autograd.grad(made(src, src != 0, tgt).sum(), made.embedding, create_graph=True)
    assert all(parameter.grad is None for parameter in made.parameters())


def test_what_is_trained_is_settled_when_the_batch_is_read() -> None:
    src, tgt = BATCHES["few keys, full"]
    made = model(True)
    weight = made.get_parameter("encoder.0.feed_forward.inner.weight")
    weight.requires_grad_(False)
    loss = made(src, src != 0, tgt).sum()
    weight.requires_grad_()
    loss.backward()
    assert weight.grad is None
    made.requires_grad_(False)
    assert not made(src, src != 0, tgt).requires_grad


def test_where_memory_runs_out_on_the_way_back_no_parameter_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    src, tgt = BATCHES["few keys, full"]
    made = model(True)
    loss = made(src, src != 0, tgt).sum()

    def short(*_: Any) -> Tensor:
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(fused, "_embedding_back", short)  # the last thing that is computed
    with pytest.raises(RuntimeError) as told:
        loss.backward()
    assert is_shortage(told.value)
    assert all(parameter.grad is None for parameter in made.parameters())
