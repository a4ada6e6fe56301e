"""Where the Transformer's incremental decoding stands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from repro.models.prepared import PreparedLayer, Slots

if TYPE_CHECKING:
    from repro.models.transformer import DecoderLayer, Memory

_STEPS = 13
"""Steps that there is room for at first; odd, for sentences a power of two apart would meet in a cache's same lines."""

_KEYS = 16
"""Fewest keys of a softmax: torch takes fewer one number at a time, which lasts ten times as long."""


class LayerCache(NamedTuple):
    """What one decoder layer attends to besides the pieces generated so far."""

    memory_kv: tuple[Tensor, Tensor]
    """The memory's keys [sentences, n_heads, d_k, src_len] and values [sentences, n_heads, src_len, d_v]."""

    def views(self) -> tuple[Tensor, Tensor]:
        """The same as `attend_side_by_side` reads them."""
        keys, values = self.memory_kv
        return keys.flatten(0, 1), values.flatten(0, 1)


class TransformerState:
    """Where incremental decoding stands, for `sentences` x `beam` hypotheses.

    A step's pieces take the next `beam` slots, hypothesis b the b-th of them, and nothing moves when the beam is
    reordered: every hypothesis knows the slots of its own pieces. Only what changes its place among the sentences is
    copied. The beam may change when it is reordered.
    """

    def __init__(self, layers: Sequence[DecoderLayer], memory: Memory, beam: int) -> None:
        states, mask = memory.states, None if memory.mask is None else memory.mask[:, 0, 0]
        lacking = _KEYS - states.shape[1]
        if lacking > 0:
            mask = states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask
            states, mask = functional.pad(states, (0, 0, 0, lacking)), functional.pad(mask, (0, lacking))
        self.beam, self.position, self.sentences = beam, 0, states.shape[0]
        self.prepared = [PreparedLayer(layer) for layer in layers]
        attention = layers[0].attention
        self._heads, self._d_k = attention.n_heads, attention.d_k
        pairs = [layer.cross.memory(states) for layer in layers]
        self._memory = [(k.transpose(2, 3).contiguous(), v.contiguous()) for k, v in pairs]
        # A layer's keys and values side by side, [sentences, n_heads, slots, d_k + d_v].
        self._stores = [states.new_empty(self.sentences, self._heads, 0, self._d_k + attention.d_v) for _ in layers]
        # [sentences, beam, slots] 0 on the slots of a hypothesis's own pieces, -inf on others.
        self._own = states.new_empty(self.sentences, beam, 0)
        self._used = 0
        self._make_room(_STEPS * beam if beam > 1 else _KEYS)
        # [sentences, src_len] 0 on real pieces, the lowest number on padding; None where there is none.
        self._padding: Tensor | None = None
        if mask is not None:
            lowest = torch.finfo(states.dtype).min
            self._padding = torch.zeros_like(mask, dtype=states.dtype).masked_fill_(~mask, lowest)
        self._settle()

    def _make_room(self, slots: int) -> None:
        """Room for `slots` slots, at least those that a softmax takes at once; of these none is ever unwritten."""
        slots, used, own = max(slots, _KEYS), self._used, self._own
        for layer, store in enumerate(self._stores):
            roomier = store.new_empty(self.sentences, self._heads, slots, store.shape[3])
            roomier[:, :, :used] = store[: self.sentences, :, :used]
            roomier[:, :, used:_KEYS] = 0.0
            self._stores[layer] = roomier
        self._own = own.new_full((*own.shape[:2], slots), -torch.inf)
        self._own[..., :used] = own[..., :used]
        self._diagonal = own.new_full((self.beam, self.beam), -torch.inf).fill_diagonal_(0.0)

    def _settle(self) -> None:
        """Note what follows from which sentences there are."""
        n, heads = self.sentences, self._heads
        self.layers = [LayerCache((keys[:n], values[:n])) for keys, values in self._memory]
        self.padding_scores = None
        """What attention to the memory adds to its scores, [sentences * n_heads, 1, src_len]; None: nothing."""
        if self._padding is not None:
            self.padding_scores = self._padding[:, None].expand(n, heads, -1).reshape(n * heads, 1, -1)

    def enter(self, pieces: Tensor) -> Tensor:
        """`pieces` [sentences * beam] as the layers have them, [beam * sentences]."""
        return pieces.view(self.sentences, self.beam).t().flatten()

    def leave(self, x: Tensor) -> Tensor:
        """The rows `x` [beam * sentences, d_model] of the layers in the order in which pieces entered."""
        return x.view(self.beam, self.sentences, -1).transpose(0, 1).flatten(0, 1)

    def open_slots(self) -> list[Slots]:
        """For each layer the slots of the next pieces, and all up to them."""
        used, end = self._used, self._used + self.beam
        if end > self._own.shape[2]:
            self._make_room(2 * self._own.shape[2] + self.beam)
        stores, seen = [store[: self.sentences].flatten(0, 1) for store in self._stores], max(end, _KEYS)
        return [
            Slots(store[:, used:end], store[:, :seen, : self._d_k].transpose(1, 2), store[:, :seen, self._d_k :])
            for store in stores
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
        moved = (sentences != torch.arange(kept, device=sentences.device)).nonzero().squeeze(1)
        if kept < self.sentences or moved.numel() > 0:
            self._keep(sentences, moved)
        if beam != self.beam:
            self.beam = beam
            self._make_room(self._used + _STEPS * beam)

    def _keep(self, sentences: Tensor, moved: Tensor) -> None:
        """Keep `sentences` [n], of which those at the places `moved` had others."""
        if moved.numel() > 0:
            came_from = sentences[moved]
            stored = [store[:, :, : self._used] for store in self._stores]
            for part in (*itertools.chain(*self._memory), *stored):
                part.index_copy_(0, moved, part.index_select(0, came_from))
        if self._padding is not None:
            self._padding = self._padding.index_select(0, sentences)
        self.sentences = sentences.numel()
        self._settle()
