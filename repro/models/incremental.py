"""Where the Transformer's incremental decoding stands, and attention for the hypotheses of a beam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from repro.models.transformer import DecoderLayer, Memory

_STEPS = 32
"""Steps that there is room for at the start."""


class LayerCache(NamedTuple):
    """What one decoder layer attends to besides the pieces generated so far."""

    memory_kv: tuple[Tensor, Tensor]
    """The memory's keys and values, each [sentences, n_heads, src_len, width]."""

    def views(self) -> tuple[Tensor, Tensor]:
        """The same as `attend_side_by_side` reads them."""
        keys, values = self.memory_kv
        return keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)


class TransformerState:
    """Where incremental decoding stands, for `sentences` x `beam` hypotheses.

    A step's pieces take the next `beam` slots, hypothesis b the b-th of them, and nothing moves when the beam is
    reordered: every hypothesis knows the slots of its own pieces. A sentence that leaves has its place taken by the
    last one. All layers' keys are one tensor, so are their values; in it slots go before sentences, so that a step
    writes in one stretch and attention reads without a copy.
    """

    def __init__(self, layers: Sequence[DecoderLayer], memory: Memory, beam: int) -> None:
        states = memory.states
        self.beam, self.position, self.sentences = beam, 0, states.shape[0]
        self._heads = layers[0].attention.n_heads
        # Keys, then values, both [layers, src_len or slots, sentences, n_heads, width].
        pairs = [layer.cross.memory(states) for layer in layers]
        self._memory = [torch.stack([part.permute(2, 0, 1, 3) for part in parts]) for parts in zip(*pairs, strict=True)]
        self._stores = [part.new_empty(len(layers), _STEPS * beam, *part.shape[2:]) for part in self._memory]
        # [sentences, beam, slots] 0 on the slots of a hypothesis's own pieces, -inf on others.
        self._own = states.new_full((beam, beam), -torch.inf).fill_diagonal_(0.0)
        self._slots = states.new_empty(self.sentences, beam, 0)
        # [sentences, 1, src_len] 0 on real pieces, the lowest number on padding; None where there is none.
        self._padding: Tensor | None = None
        if memory.mask is not None:
            padding = ~memory.mask[:, 0]
            lowest = torch.finfo(states.dtype).min
            self._padding = torch.zeros_like(padding, dtype=states.dtype).masked_fill_(padding, lowest)
        self._settle(torch.arange(self.sentences, device=states.device))

    def _settle(self, places: Tensor) -> None:
        """Note the place of each sentence, `places` [sentences], and what follows from it."""
        n = self.sentences = places.numel()
        self._places, self._order = places, torch.empty_like(places)
        self._order[places] = torch.arange(n, device=places.device)
        self._rows = (places[:, None] + n * torch.arange(self.beam, device=places.device)).flatten()
        self.padding_scores = None if self._padding is None else self._spread(self._padding)
        """What attention to the memory adds to its scores, [sentences * n_heads, beam, src_len]; None: nothing."""
        self.layers = [
            LayerCache((keys[:, :n].permute(1, 2, 0, 3), values[:, :n].permute(1, 2, 0, 3)))
            for keys, values in zip(*self._memory, strict=True)
        ]

    def _spread(self, scores: Tensor) -> Tensor:
        """`scores` [sentences, beam or 1, keys] for every head: [sentences * n_heads, beam, keys]."""
        n, _, keys = scores.shape
        return scores[:, None].expand(n, self._heads, self.beam, keys).reshape(n * self._heads, self.beam, keys)

    def enter(self, pieces: Tensor) -> Tensor:
        """`pieces` [sentences * beam] as the layers have them, [beam * sentences], each sentence in its place."""
        return pieces.view(self.sentences, self.beam).t().index_select(1, self._order).flatten()

    def leave(self, x: Tensor) -> Tensor:
        """The rows `x` [beam * sentences, ...] of the layers in the order in which pieces entered."""
        return x.index_select(0, self._rows)

    def open_slots(self) -> list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """For each layer, where the keys and values of the next pieces go, and all up to them.

        The first two are [beam, sentences, n_heads * width], the others as `attend_side_by_side` reads them.
        """
        used = self.position * self.beam
        end, n = used + self.beam, self.sentences
        if end > self._stores[0].shape[1]:
            self._stores = [torch.cat((store, torch.empty_like(store)), 1) for store in self._stores]
        keys, values = (store[:, :end, :n].flatten(2, 3) for store in self._stores)
        keys, values = keys.permute(0, 2, 3, 1), values.transpose(1, 2)
        into_k, into_v = (store[:, used:end, :n].flatten(3) for store in self._stores)
        return [((into_k[i], into_v[i]), (keys[i], values[i])) for i in range(keys.shape[0])]

    def grow(self) -> Tensor | None:
        """What self-attention adds to its scores, [sentences * n_heads, beam, slots], with one more piece for each."""
        self.position += 1
        if self.beam == 1:
            return None
        self._slots = torch.cat((self._slots, self._own.expand(self.sentences, -1, -1)), dim=-1)
        return self._spread(self._slots)

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep `sentences` [n], and continue in each from its hypotheses `beams` [n, beam]."""
        kept = sentences.numel()
        sources = torch.arange(kept, device=sentences.device)
        if kept < self.sentences or not torch.equal(sentences, sources):
            sources = self._keep(self._places[sentences])
        if self.beam > 1:
            rows = (sources[:, None] * self.beam + beams.index_select(0, self._order)).flatten()
            self._slots = self._slots.flatten(0, 1).index_select(0, rows).view(kept, self.beam, -1)

    def _keep(self, places: Tensor) -> Tensor:
        """Keep the sentences at `places` [n], from now on in places 0 to n - 1; from where each of these came, [n]."""
        kept, device, used = places.numel(), places.device, self.position * self.beam
        stays = torch.zeros(self.sentences, dtype=torch.bool, device=device)
        stays[places] = True
        free = (~stays[:kept]).nonzero().squeeze(1)
        last = stays[kept:].nonzero().squeeze(1) + kept
        sources, targets = torch.arange(kept, device=device), torch.arange(self.sentences, device=device)
        if free.numel() > 0:
            sources[free], targets[last] = last, free
            for memory, store in zip(self._memory, self._stores, strict=True):
                memory[:, :, free] = memory[:, :, last]
                store[:, :used, free] = store[:, :used, last]
        if self._padding is not None:
            self._padding = self._padding.index_select(0, sources)
        self._settle(targets[places])
        return sources


def attend_side_by_side(q: Tensor, k: Tensor, v: Tensor, scale: float, scores: Tensor | None) -> Tensor:
    """What the hypotheses of each sentence find, [beam * sentences, n_heads * d_v].

    `q` [beam, sentences, n_heads * d_k]; `k` [sentences * n_heads, d_k, keys] and `v` [sentences * n_heads, keys, d_v]
    are shared by a sentence's hypotheses; `scores` [sentences * n_heads, beam, keys] are added to the scaled products.
    For so few queries two products in batches take a third to a half of the time of torch's fused attention.
    """
    beam, n, _ = q.shape
    q = q.reshape(beam, k.shape[0], k.shape[1]).transpose(0, 1)
    scores = torch.bmm(q * scale, k) if scores is None else torch.baddbmm(scores, q, k, alpha=scale)
    context = torch.bmm(torch.softmax(scores, -1), v)
    return context.view(n, -1, beam, v.shape[2]).permute(2, 0, 1, 3).reshape(beam * n, -1)
