"""LSTM layers over padded batches, one piece at a time for search, and the reading order of a sentence's pieces.

The cell is that of Hochreiter and Schmidhuber with forget gates and without peepholes (Sutskever et al., 2014):
i, f, o = sigmoid(...), g = tanh(...), c = f c + i g, h = o tanh(c), each of them W x + U h + b.

Padding stands at the end of a row, so it comes after everything that matters: a sentence read backwards is turned
within its own length first, and final states are taken where each sentence ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models.source import Source


class Cell(NamedTuple):
    """An LSTM layer's state."""

    h: Tensor
    """[rows, d_hidden], which is also the layer's output."""
    c: Tensor
    """[rows, d_hidden]"""

    def rows(self, which: Tensor | slice) -> Cell:
        """The states of some rows."""
        return Cell(self.h[which], self.c[which])


class Stretch(NamedTuple):
    """Steps start .. end - 1, in which exactly the first `rows` rows still read; rows are sorted by falling length."""

    rows: int
    start: int
    end: int


class LstmLayer(nn.Module):
    """One layer in one direction: all steps as one fused call where the whole input is known."""

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_in, d_hidden, batch_first=True)

    def zeros(self, x: Tensor) -> Cell:
        """The state before the first piece, for the rows of `x`."""
        zeros = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        # The fused kernels compute the first state's gradient in any case; on "meta" it is to be counted, too.
        zeros.requires_grad_(x.device.type == "meta" and torch.is_grad_enabled())
        return Cell(zeros, zeros)

    def forward(self, x: Tensor, cell: Cell | None = None) -> tuple[Tensor, Cell]:
        """Outputs [batch, length, d_hidden] of `x` [batch, length, d_in] after `cell` (zeros when None), and the
        state after the last step."""
        h, c = self.zeros(x) if cell is None else cell
        outputs, (h, c) = self.lstm(x, (h[None], c[None]))
        return outputs, Cell(h[0], c[0])

    def to_ends(self, x: Tensor, stretches: Sequence[Stretch]) -> tuple[Tensor, Cell]:
        """As `forward`, but with each row's state after its own last piece; outputs past it are zeros.

        Rows of `x` are sorted by falling length. Nothing is computed for padding.
        """
        cell, ended, outputs = self.zeros(x), [], []
        for rows, start, end in stretches:
            ended.append(cell.rows(slice(rows, None)))
            y, cell = self(x[:rows, start:end], cell.rows(slice(rows)))
            outputs.append(functional.pad(y, (0, 0, 0, 0, 0, x.shape[0] - rows)))
        ended.append(cell)
        final = Cell(torch.cat([part.h for part in reversed(ended)]), torch.cat([part.c for part in reversed(ended)]))
        return torch.cat(outputs, 1) if outputs else x.new_zeros(*x.shape[:2], self.lstm.hidden_size), final

    def step(self, x: Tensor, cell: Cell) -> Cell:
        """The state [rows, d_hidden] after one more input `x` [rows, d_in]."""
        w_ih, w_hh, b_ih, b_hh = self.lstm.all_weights[0]
        return Cell(*torch.lstm_cell(x, (cell.h, cell.c), w_ih, w_hh, b_ih, b_hh))


class BidirectionalLayer(nn.Module):
    """Two layers side by side, one of which reads each sentence from its last real piece to its first."""

    def __init__(self, d_in: int, d_hidden: int) -> None:
        super().__init__()
        self.forwards, self.backwards = LstmLayer(d_in, d_hidden), LstmLayer(d_in, d_hidden)

    def forward(self, x: Tensor, reverse: Tensor) -> Tensor:
        """[batch, src_len, 2 d_hidden], the forward half first, of `x` [batch, src_len, d_in] and `reverse_order`."""
        ahead, _ = self.forwards(x)
        back, _ = self.backwards(take(x, reverse))
        return torch.cat((ahead, take(back, reverse)), -1)


def reverse_order(mask: Tensor) -> Tensor:
    """Which position stands at each position once every row is turned within its own length; padding stays.

    [batch, length] int64 from `mask` [batch, length]. It is its own inverse.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = mask.sum(1, keepdim=True) - 1
    return torch.where(position <= last, last - position, position)


def take(x: Tensor, order: Tensor) -> Tensor:
    """`x` [batch, length, ...] with its positions in the order `order` [batch, length]."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + order).flatten()).view(x.shape)


def falling_lengths(mask: Tensor) -> tuple[Tensor, list[Stretch]]:
    """The rows of `mask` [batch, length] by falling length (equal ones in order) and the stretches of their steps."""
    if mask.device.type == "meta":  # no lengths there: full rows stand for all
        return torch.arange(mask.shape[0], device="meta"), [Stretch(mask.shape[0], 0, mask.shape[1])]
    lengths = mask.sum(1)
    order = lengths.argsort(descending=True, stable=True)
    falling = lengths.tolist()
    ends = sorted({length for length in falling if length > 0})
    starts = [0, *ends[:-1]]
    counts = [sum(length >= end for length in falling) for end in ends]
    return order, [Stretch(*parts) for parts in zip(counts, starts, ends, strict=True)]


class RecurrentState:
    """The cells of a decoder's layers for `sentences` x `beam` rows, and the source where there is attention."""

    def __init__(self, cells: list[Cell], beam: int, source: Source | None = None) -> None:
        self.cells, self.beam, self._source = cells, beam, source

    @property
    def source(self) -> Source:
        """What attention looks at, of each sentence."""
        assert self._source is not None, "a decoder without attention has no source"
        return self._source

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep `sentences` [n], and continue in each from its hypotheses `beams` [n, beam]."""
        rows = (sentences[:, None] * self.beam + beams).flatten()
        self.cells = [cell.rows(rows) for cell in self.cells]
        self.beam = beams.shape[1]
        if self._source is not None:
            self._source = self._source.keep(sentences)


def repeat_rows(cell: Cell, beam: int) -> Cell:
    """A state for each of `beam` hypotheses a row, [rows * beam, d_hidden]."""
    return Cell(cell.h.repeat_interleave(beam, 0), cell.c.repeat_interleave(beam, 0))


def initialise_uniform(model: nn.Module, bound: float, generator: torch.Generator) -> None:
    """Draw every parameter from U(-bound, bound)."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


def widening(published: int, d_hidden: int) -> float:
    """How much wider than at the `published` width weights start at `d_hidden`, so that sums over the inputs keep
    their variance.

    The papers give one number for one width. Taken over to a narrow model it all but cuts a deep stack: four layers of
    64 at U(-0.1, 0.1) learn nothing in the time in which, started wider, they learn to reverse a sentence.
    """
    return math.sqrt(published / d_hidden)
