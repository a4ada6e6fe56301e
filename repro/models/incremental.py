"""Where the Transformer's incremental decoding stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from repro.models.prepared import PreparedLayer, Slots

if TYPE_CHECKING:
    from repro.models.transformer import DecoderLayer, Memory

_SLOTS = 53
"""Slots that there is room for at first; odd, for sentences a power of two apart would meet in a cache's same lines."""

_KEYS = 16
"""Fewest keys of a softmax: torch takes fewer one number at a time, which lasts ten times as long."""


class Reserve:
    """What one search has of the one before it: the layers made ready, and the memory for keys and values.

    The system clears large memory whenever it gives it out, page by page.
    """

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        self.prepared = [PreparedLayer(layer) for layer in layers]
        self._block: Tensor | None = None

    def memory(self, numbers: int, like: Tensor) -> Tensor:
        """[layers, numbers] of `like`'s kind, which may hold anything; also what was given out before, if it fits."""
        if self._block is None or self._block.shape[1] < numbers:
            self._block = None  # given back first, unless it is in use
            self._block = like.new_empty(len(self.prepared), numbers * 5 // 4)  # a batch a little larger fits as well
        return self._block[:, :numbers]


class TransformerState:
    """Where incremental decoding stands, for `sentences` x `beam` hypotheses.

    A step's pieces take the next `beam` slots, hypothesis b the b-th of them, and nothing moves when the beam is
    reordered: every hypothesis knows the slots of its own pieces. Only what changes its place among the sentences is
    copied. The beam may change when it is reordered.

    `reserve` is of the same layers, and of no other state that still goes on.
    """

    def __init__(
        self, layers: Sequence[DecoderLayer], memory: Memory, beam: int, reserve: Reserve | None = None
    ) -> None:
        states, mask = memory.states, None if memory.mask is None else memory.mask[:, 0, 0]
        lacking = _KEYS - states.shape[1]
        if lacking > 0:
            mask = states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask
            states, mask = functional.pad(states, (0, 0, 0, lacking)), functional.pad(mask, (0, lacking))
        self.beam, self.position, self.sentences = beam, 0, states.shape[0]
        self._reserve = reserve or Reserve(layers)
        self.prepared = self._reserve.prepared
        attention = layers[0].attention
        self._heads, self._d_k, self._width = attention.n_heads, attention.d_k, attention.d_k + attention.d_v
        # The memory's keys [layers, sentences, n_heads, d_k, src_len] and values [..., src_len, d_v].
        keys, values = zip(*(layer.cross.memory(states) for layer in layers), strict=True)
        self._keys, self._values = torch.stack([k.transpose(2, 3) for k in keys]), torch.stack(values)
        # [sentences, src_len] 0 on real pieces, the lowest number on padding; None where there is none.
        self._padding: Tensor | None = None
        if mask is not None:
            lowest = torch.finfo(states.dtype).min
            self._padding = torch.zeros_like(mask, dtype=states.dtype).masked_fill_(~mask, lowest)
        self._used = 0
        # Keys and values of generated pieces side by side, [layers, sentences, n_heads, slots, d_k + d_v].
        self._store = states.new_empty(len(layers), self.sentences, self._heads, 0, self._width)
        # [sentences, beam, slots] 0 on the slots of a hypothesis's own pieces, -inf on others.
        self._own = states.new_empty(self.sentences, beam, 0)
        self._diagonal = _diagonal(states, beam)
        self._make_room(_SLOTS)

    def _make_room(self, slots: int) -> None:
        """Room for `slots` slots, or one more: an odd number. Those that a softmax takes at least are all written."""
        room, slot = slots | 1, self.sentences * self._heads * self._width
        used, own, written = self._used, self._own, self._store
        memory = self._reserve.memory(room * slot, own)
        self._store = memory.view(-1, self.sentences, self._heads, room, self._width)
        for part, before in zip(self._store, written, strict=True):
            part[:, :, :used] = before[: self.sentences, :, :used].clone()  # both may lie in the same memory
            part[:, :, used:_KEYS] = 0.0
        self._own = own.new_full((*own.shape[:2], room), -torch.inf)
        self._own[..., :used] = own[..., :used]
        self._settle()

    def _settle(self) -> None:
        """Note what follows from which sentences and slots there are."""
        n, heads, d_k = self.sentences, self._heads, self._d_k
        keys, values, store = (part[:, :n].flatten(1, 2) for part in (self._keys, self._values, self._store))
        self.memory = list(zip(keys, values, strict=True))
        """Of each layer what attention to the memory reads: keys [sentences * n_heads, d_k, src_len] and values
        [sentences * n_heads, src_len, d_v]."""
        self.padding_scores = None
        """What attention to the memory adds to its scores, [sentences * n_heads, 1, src_len]; None: nothing."""
        if self._padding is not None:
            self.padding_scores = self._padding[:, None].expand(n, heads, -1).reshape(n * heads, 1, -1)
        self._slots = [Slots(part, part[..., :d_k].transpose(1, 2), part[..., d_k:]) for part in store]

    def enter(self, pieces: Tensor) -> Tensor:
        """`pieces` [sentences * beam] as the layers have them, [beam * sentences]."""
        return pieces.view(self.sentences, self.beam).t().flatten()

    def leave(self, x: Tensor) -> Tensor:
        """The rows `x` [beam * sentences, d_model] of the layers in the order in which pieces entered."""
        return x.view(self.beam, self.sentences, -1).transpose(0, 1).flatten(0, 1)

    def open_slots(self) -> list[Slots]:
        """For each layer the slots of the next pieces, and all up to them."""
        used, beam, end = self._used, self.beam, self._used + self.beam
        if end > self._own.shape[2]:
            self._make_room(end + end // 2)
        seen = max(end, _KEYS)
        return [
            Slots(into.narrow(1, used, beam), keys.narrow(2, 0, seen), values.narrow(1, 0, seen))
            for into, keys, values in self._slots
        ]

    def grow(self) -> Tensor | None:
        """What self-attention adds to its scores, [sentences * n_heads, beam, slots], with one more piece for each."""
        self.position += 1
        used, n = self._used, self.sentences
        self._used = end = used + self.beam
        self._own[:, :, used:end] = self._diagonal
        own = self._own[:, None, :, : max(end, _KEYS)]
        return own.expand(-1, self._heads, -1, -1).reshape(n * self._heads, self.beam, -1)

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep `sentences` [n], and continue in each from its hypotheses `beams` [n, beam]."""
        kept, beam = beams.shape
        rows = (sentences[:, None] * self.beam + beams).flatten()
        self._own = self._own.flatten(0, 1).index_select(0, rows).view(kept, beam, -1)
        if beam != self.beam:
            self.beam, self._diagonal = beam, _diagonal(self._own, beam)
        moved = (sentences != torch.arange(kept, device=sentences.device)).nonzero().squeeze(1)
        if kept == self.sentences and moved.numel() == 0:
            return
        # Few move. Their places and where they come from as numbers: torch's own indexing copies one number at a time.
        places, came_from = moved.tolist(), sentences[moved].tolist()
        for part in (self._keys, self._values, self._store[:, :, :, : self._used]):
            taken = [part[:, sentence].clone() for sentence in came_from]
            for place, sentence in zip(places, taken, strict=True):
                part[:, place] = sentence
        if self._padding is not None:
            self._padding = self._padding.index_select(0, sentences)
        self.sentences = kept
        self._settle()


def _diagonal(like: Tensor, beam: int) -> Tensor:
    """[beam, beam] 0 on the diagonal, -inf elsewhere."""
    return like.new_full((beam, beam), -torch.inf).fill_diagonal_(0.0)
