"""What every model family offers: teacher-forced decoding for training, incremental decoding for search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from repro.models.dropout import RandomSource
from repro.models.linear import linear
from repro.models.prepared import PreparedLinear

MemoryT = TypeVar("MemoryT")
"""What an encoder hands to its decoder; each family has its own."""


class DecoderState(Protocol):
    """What a decoder carries from one generated piece to the next, for `sentences x beam` rows."""

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep the sentences `sentences` [n] (indices into the current ones) and continue, for each, from its
        hypotheses `beams` [n, beam] (indices into its current beam, which may be of another width)."""


StateT = TypeVar("StateT", bound=DecoderState)


class Output(NamedTuple):
    """The linear map from hidden states to logits, which the loss takes apart to work in chunks."""

    weight: Tensor
    """[vocabulary, d_out]; a parameter, a tied embedding or computed from parameters."""
    bias: Tensor | None = None
    """[vocabulary] or none."""


class Seq2Seq(nn.Module, ABC, Generic[MemoryT, StateT]):
    """A translation model. Masks are boolean and True means "may attend": a real piece, not padding.

    A family's constructor only shapes its parameters, each registered under one name; `build_model` allocates them
    and then calls `initialise`, so that nothing is drawn from torch's global generator.
    """

    random: RandomSource
    """The seeded source of every dropout mask of this model."""

    fused: bool = False
    """Whether `forward` may go a quicker way in training that gives the same numbers up to rounding, where the family
    has one. Made for `backward` on a loss: whatever goes back through its output adds to the `grad` of every trained
    parameter, and `torch.autograd.grad` finds few of them; most modules and parameters call no hooks."""

    max_positions: int | None = None
    """Most pieces a side that the model can take, both marks counted; None: any number."""

    @abstractmethod
    def encode(self, src: Tensor, src_mask: Tensor) -> MemoryT:
        """The memory of `src` [batch, src_len] (piece ids) with `src_mask` [batch, src_len]."""

    @abstractmethod
    def decode(self, tgt_in: Tensor, memory: MemoryT) -> Tensor:
        """Hidden states [batch, tgt_len, d_out] for `tgt_in` [batch, tgt_len], which begins with the start mark.

        The state at position t depends on tgt_in[:, : t + 1] only.
        """

    @abstractmethod
    def output(self) -> Output:
        """The weight and bias of the layer before the softmax."""

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Draw every parameter from `generator`, as the family's paper does."""

    def project(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of hidden states [..., d_out]."""
        return linear(hidden, *self.output())

    def projection(self) -> Callable[[Tensor], Tensor]:
        """`project` for many calls on [rows, d_out] in inference mode, while no parameter changes."""
        return PreparedLinear(*self.output())

    @abstractmethod
    def start(self, memory: MemoryT, beam: int) -> StateT:
        """The state before the first piece, for `beam` hypotheses a sentence. Work on the source is done once here."""

    def reserve(self) -> Any:
        """What one search after the other uses, while no parameter changes, where the family's state is costly to set
        up; otherwise None."""
        return None

    def begin(self, memory: MemoryT, reserve: Any) -> StateT:  # noqa: ARG002 - a family may use it
        """`start` for one hypothesis a sentence, with this model's `reserve`, which no search uses any more."""
        return self.start(memory, 1)

    @abstractmethod
    def advance(self, pieces: Tensor, state: StateT) -> Tensor:
        """Hidden states [sentences * beam, d_out] after one more piece `pieces` [sentences * beam] each.

        Rows are sentence-major. Changes `state` in place, with constant model work per piece. Equal to the last
        column of `decode` on the whole prefix.
        """

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Hidden states [batch, tgt_len, d_out]: `decode(tgt_in, encode(src, src_mask))`."""
        return self.decode(tgt_in, self.encode(src, src_mask))


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers of `model`; a shared matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
