"""torch's fused Adam without what its class looks up anew for every parameter in every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Moments(NamedTuple):
    """The state of all parameters, in their order."""

    states: list[dict[str, Tensor]]
    """As the optimizer has them: another one means that a state was loaded."""
    averages: list[Tensor]
    squares: list[Tensor]
    steps: Tensor
    """How many were taken: one number for all parameters."""


class Adam(torch.optim.Adam):
    """torch's fused Adam: the same numbers, the same state.

    On a CPU, from the second step on, where all parameters have gradients and were stepped equally often, they share
    one count of steps and torch's operator is called directly. Everything else, a step that `found_inf` may stop among
    it, is left to torch's class.
    """

    def __init__(self, parameters: Iterable[Tensor], *, betas: tuple[float, float], eps: float) -> None:
        super().__init__(parameters, lr=0.0, betas=betas, eps=eps, fused=True)
        self._begin()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For copies and pickles, which torch's class makes of its own attributes alone."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()

    def _begin(self) -> None:
        self._all: list[Tensor] = self.param_groups[0]["params"]
        self._cpu = all(parameter.device.type == "cpu" for parameter in self._all)
        self._moments: _Moments | None = None

    def step(self, closure: Any = None) -> Any:
        """One step with the parameters' gradients and the group's learning rate."""
        gradients = [parameter.grad for parameter in self._all if parameter.grad is not None]
        whole = len(gradients) == len(self._all)
        plain = closure is None and getattr(self, "found_inf", None) is None
        moments = self._together() if self._cpu and plain and whole else None
        if moments is None:
            self._separate()
            return super().step(closure)
        options = self.param_groups[0]
        with torch.no_grad():
            moments.steps.add_(1)
            torch._fused_adam_(
                self._all,
                gradients,
                moments.averages,
                moments.squares,
                [],
                [moments.steps] * len(gradients),
                lr=options["lr"],
                beta1=options["betas"][0],
                beta2=options["betas"][1],
                weight_decay=0.0,
                eps=options["eps"],
                amsgrad=False,
                maximize=False,
            )
        return None

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it, for its profiler and for hooks on steps

    def clear_gradients(self) -> None:
        """Leave no parameter a gradient."""
        for parameter in self._all:
            parameter.grad = None

    def _together(self) -> _Moments | None:
        """The moments, with one count of steps, where all parameters were stepped equally often."""
        states: list[dict[str, Tensor]] = [self.state[parameter] for parameter in self._all]
        if self._moments is None or any(a is not b for a, b in zip(states, self._moments.states, strict=True)):
            counts = {float(state["step"]) if state else -1.0 for state in states}
            if len(counts) > 1 or -1.0 in counts:
                return None
            count = states[0]["step"]
            for state in states:
                state["step"] = count
            self._moments = _Moments(states, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], count)
        return self._moments

    def _separate(self) -> None:
        """Give each parameter a count of its own, as torch's class needs it."""
        if self._moments is not None:
            for state in self.state.values():
                state["step"] = state["step"].clone()
            self._moments = None
