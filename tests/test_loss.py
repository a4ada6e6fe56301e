"""The chunked loss against torch's own cross-entropy and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repro.models.seq2seq import Output
from repro.training import loss as loss_module
from repro.training.loss import real_positions, smoothed_loss, smoothing_targets

VOCABULARY, D = 37, 6


def example(bias: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Output]:
    """Hidden states [5, 8, D], targets with padding (one row nothing else), and an output layer."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    targets = torch.randint(1, VOCABULARY, (5, 8), generator=generator)
    for row, length in enumerate((8, 3, 0, 7, 1)):
        targets[row, length:] = 0
    return draw(5, 8, D), targets, Output(draw(VOCABULARY, D), draw(VOCABULARY) if bias else None)


def gradients(total: Tensor, hidden: Tensor, output: Output) -> list[Tensor]:
    return list(torch.autograd.grad(total, [x for x in (hidden, *output) if x is not None], retain_graph=True))


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many chunks":
        monkeypatch.setattr(loss_module, "CPU_CHUNK", 1)
        monkeypatch.setattr(loss_module, "LEAST_ROWS", 4)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(smoothing: float, bias: bool) -> None:
    hidden, targets, output = example(bias)
    logits = functional.linear(hidden, *output).flatten(0, 1)
    expected = functional.cross_entropy(
        logits, targets.flatten(), ignore_index=0, label_smoothing=smoothing, reduction="sum"
    )
    nll = functional.cross_entropy(logits, targets.flatten(), ignore_index=0, reduction="sum")
    loss = smoothed_loss(hidden, targets, output, smoothing=smoothing, normaliser=19)
    assert float(loss.smoothed) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert float(loss.nll) == pytest.approx(float(nll.detach()), rel=1e-6)
    for got, right in zip(gradients(loss.total, hidden, output), gradients(expected / 19, hidden, output), strict=True):
        torch.testing.assert_close(got, right, atol=1e-6, rtol=1e-5)


def test_the_two_kinds_of_smoothing_have_their_published_targets() -> None:
    assert smoothing_targets(0.1, "uniform", 5) == pytest.approx((0.92, 0.02))
    assert smoothing_targets(0.1, "exclude_gold", 5) == pytest.approx((0.9, 0.025))


@pytest.mark.parametrize(("kind", "gold", "low"), [("uniform", 0.92, 0.02), ("exclude_gold", 0.9, 0.025)])
def test_smoothing_is_cross_entropy_with_these_targets(kind: Any, gold: float, low: float) -> None:
    hidden, weight = torch.randn(1, 3, 4), torch.randn(5, 4)
    targets = torch.tensor([[2, 4, 1]])
    wanted = torch.full((3, 5), low).scatter_(1, targets.t(), gold)
    expected = -(wanted * (hidden[0] @ weight.t()).log_softmax(-1)).sum()
    loss = smoothed_loss(hidden, targets, Output(weight), smoothing=0.1, kind=kind)
    assert float(loss.smoothed) == pytest.approx(float(expected.detach()), rel=1e-6)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kind", ["uniform", "exclude_gold"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_finite_differences(kind: Any, bias: bool) -> None:
    hidden, targets, output = example(bias, torch.float64)
    inputs = [x for x in (hidden, *output) if x is not None]

    def total(hidden: Tensor, *output: Tensor) -> Tensor:
        return smoothed_loss(hidden, targets, Output(*output), smoothing=0.2, kind=kind, normaliser=3.0).total

    assert torch.autograd.gradcheck(total, inputs)


def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch() -> None:
    hidden, targets, output = example()
    whole = smoothed_loss(hidden, targets, output, smoothing=0.1, normaliser=19)
    parts = [
        smoothed_loss(hidden[rows], targets[rows], output, smoothing=0.1, normaliser=19)
        for rows in (slice(0, 1), slice(1, 4), slice(4, 5))
    ]
    assert float(sum(part.total for part in parts)) == pytest.approx(float(whole.total), rel=1e-6)
    summed = [sum(x) for x in zip(*(gradients(part.total, hidden, output) for part in parts), strict=True)]
    for got, right in zip(summed, gradients(whole.total, hidden, output), strict=True):
        torch.testing.assert_close(got, right)


def test_padding_takes_no_part() -> None:
    hidden, targets, output = example()
    loss = smoothed_loss(hidden, targets, output, smoothing=0.1)
    wild = torch.where((targets == 0)[..., None], torch.nan, hidden.detach())
    assert float(smoothed_loss(wild, targets, output, smoothing=0.1).total) == float(loss.total)
    assert float(gradients(loss.total, hidden, output)[0][targets == 0].abs().max()) == 0.0


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient() -> None:
    hidden, targets, output = example()
    loss = smoothed_loss(hidden, torch.zeros_like(targets), output, smoothing=0.1)
    assert (float(loss.total), float(loss.nll)) == (0.0, 0.0)
    assert all(float(gradient.abs().max()) == 0.0 for gradient in gradients(loss.total, hidden, output))


def test_positions_found_on_the_host_change_nothing() -> None:
    hidden, targets, output = example()
    given = smoothed_loss(hidden, targets, output, positions=real_positions(targets))
    assert float(given.total) == float(smoothed_loss(hidden, targets, output).total)


def test_evaluation_without_gradients_gives_the_same_loss() -> None:
    hidden, targets, output = example()
    with torch.inference_mode():
        loss = smoothed_loss(hidden, targets, output, smoothing=0.1)
    assert not loss.total.requires_grad
    assert float(loss.total) == float(smoothed_loss(hidden, targets, output, smoothing=0.1).total)


def test_large_logits_keep_the_loss_finite_and_right() -> None:
    hidden = torch.tensor([[[300.0], [-300.0]]])
    weight = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = smoothed_loss(hidden, torch.tensor([[2, 2]]), Output(weight))
    assert float(loss.nll) == pytest.approx(600.0)


def test_a_non_finite_hidden_state_shows_in_the_loss() -> None:
    hidden, targets, output = example()
    broken = hidden.detach().clone()
    broken[0, 0, 0] = torch.nan
    assert not bool(smoothed_loss(broken, targets, output).total.isfinite())


def test_under_autocast_products_are_bfloat16_and_the_softmax_is_not() -> None:
    hidden, targets, output = example()
    exact = smoothed_loss(hidden, targets, output, smoothing=0.1)
    seen: set[torch.dtype] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if "softmax" in str(func):
                seen.add(result.dtype)
            return result

    with torch.autocast("cpu", torch.bfloat16), Watch():
        rough = smoothed_loss(hidden, targets, output, smoothing=0.1)
    assert seen == {torch.float32}
    assert float(rough.total.detach()) != float(exact.total.detach())
    assert float(rough.total.detach()) == pytest.approx(float(exact.total.detach()), rel=5e-3)
    for got, right in zip(gradients(rough.total, hidden, output), gradients(exact.total, hidden, output), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, right, atol=0.05, rtol=0.05)


def test_logits_of_the_whole_batch_never_exist_at_once() -> None:
    positions, vocabulary = 3000, 6000
    hidden = torch.randn(1, positions, 2, requires_grad=True)
    weight = torch.randn(vocabulary, 2, requires_grad=True)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            largest = max(largest, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor)), 0)
            return result

    with Watch():
        smoothed_loss(hidden, torch.full((1, positions), 7), Output(weight), smoothing=0.1).total.backward()
    assert largest <= 2**21 < positions * vocabulary / 8
