"""The trainer's Adam beside torch's own: the same bits, whatever comes between two steps."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from repro.training.adam import Adam

BETAS, EPS = (0.9, 0.98), 1e-9


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((7, 5), (33,), (3, 4, 2))]


class Pair:
    """Both optimizers on equal parameters."""

    def __init__(self) -> None:
        self.ours, self.torchs = parameters(), parameters()
        self.adam = Adam(self.ours, betas=BETAS, eps=EPS)
        self.reference = torch.optim.Adam(self.torchs, lr=0.0, betas=BETAS, eps=EPS, fused=True)
        self._draws = torch.Generator().manual_seed(2)

    def step(self, rate: float, without: int | None = None) -> None:
        """One step of both at `rate`, the parameter `without` having no gradient."""
        self.adam.clear_gradients()
        for index, (ours, torchs) in enumerate(zip(self.ours, self.torchs, strict=True)):
            drawn = torch.randn(ours.shape, generator=self._draws)
            ours.grad, torchs.grad = (None, None) if index == without else (drawn, drawn.clone())
        for optimizer in (self.adam, self.reference):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

    def assert_equal(self) -> None:
        for ours, torchs in zip(self.ours, self.torchs, strict=True):
            assert torch.equal(ours, torchs)
            state, expected = self.adam.state[ours], self.reference.state[torchs]
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[part], expected[part]) for part in expected)


def test_its_steps_are_those_of_torchs_class() -> None:
    pair = Pair()
    for step in range(1, 8):
        pair.step(0.1 / step)
        pair.assert_equal()


def test_a_parameter_without_a_gradient_is_left_alone_and_counted_apart() -> None:
    for when in ({1}, {3}, {1, 4}):
        pair = Pair()
        for step in range(1, 7):
            pair.step(0.01, without=1 if step in when else None)
            pair.assert_equal()
        assert float(pair.adam.state[pair.ours[1]]["step"]) == 6 - len(when)
        assert float(pair.adam.state[pair.ours[0]]["step"]) == 6


def test_it_goes_on_from_a_state_that_was_put_in() -> None:
    pair = Pair()
    for _ in range(3):
        pair.step(0.01)
    kept = [copy.deepcopy(pair.adam.state[parameter]) for parameter in pair.ours]
    with torch.no_grad():
        weights = [parameter.clone() for parameter in pair.ours]
    pair.step(0.01)
    for parameters_of, optimizer in ((pair.ours, pair.adam), (pair.torchs, pair.reference)):
        for parameter, weight, state in zip(parameters_of, weights, kept, strict=True):
            with torch.no_grad():
                parameter.copy_(weight)
            optimizer.state[parameter] = copy.deepcopy(state)
    for _ in range(2):
        pair.step(0.02)
        pair.assert_equal()
    assert float(pair.adam.state[pair.ours[0]]["step"]) == 5


def test_a_step_that_is_called_off_changes_nothing() -> None:
    pair = Pair()
    for called_off in (0.0, 1.0, 0.0):
        pair.step(0.01)
        before = copy.deepcopy(pair.ours)
        pair.adam.found_inf = pair.reference.found_inf = torch.tensor(called_off)  # type: ignore[attr-defined]
        pair.step(0.01)
        assert all(torch.equal(a, b) == bool(called_off) for a, b in zip(before, pair.ours, strict=True))
        del pair.adam.found_inf, pair.reference.found_inf  # type: ignore[attr-defined]
        pair.assert_equal()


def test_cleared_gradients_are_gone() -> None:
    pair = Pair()
    pair.step(0.01)
    pair.adam.clear_gradients()
    assert all(parameter.grad is None for parameter in pair.ours)


def test_a_copy_goes_on_as_the_original_does() -> None:
    pair = Pair()
    for _ in range(3):
        pair.step(0.01)
    (adam,) = copy.deepcopy([pair.adam])
    pair.step(0.02)
    copied = adam.param_groups[0]["params"]
    for parameter, original in zip(copied, pair.ours, strict=True):
        assert original.grad is not None
        parameter.grad = original.grad.clone()
    adam.param_groups[0]["lr"] = 0.02
    adam.step()
    assert all(torch.equal(one, other) for one, other in zip(copied, pair.ours, strict=True))


def test_a_state_that_was_put_in_place_of_one_parameters_is_taken() -> None:
    pair = Pair()
    for _ in range(3):
        pair.step(0.01)
    for optimizer, parameter in ((pair.adam, pair.ours[2]), (pair.reference, pair.torchs[2])):
        optimizer.state[parameter] = {name: value.clone() * 2 for name, value in optimizer.state[parameter].items()}
    pair.step(0.01)
    pair.assert_equal()
