"""Sentences one after the other, without padding between them, in arrays of few sizes: what a GPU computes.

The sizes are rounded up, so that a run meets few of them, and what is left over is filled with short sentences of
padding pieces. So every row belongs to a sentence: flash attention leaves others uninitialised. Nothing goes from one
sentence to another, and the loss gives the padding pieces no weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.profiler import record_function

from repro.data.pieces import Batch
from repro.models.attention import Attention, CrossAttention, Segments, SelfAttention, attend_packed
from repro.models.positions import LearnedPositions
from repro.models.transformer import DecoderLayer, EncoderLayer, Residual, Transformer

STEPS = 16
"""Into so many steps the rows of a full batch are divided; numbers of rows are rounded up to a whole step."""
_MULTIPLE = 128
"""A step is a multiple of it: the tiles of matrix products are full."""
_SHORTEST = 64
"""No bound on a sentence's length is lower; flash attention computes blocks of so many queries."""
ATTENTION_MARK = "part: attention"
"""What a profile shows around attention: here no module is called whose hooks could mark it."""

Numbers = NDArray[np.int64]


class Shape(NamedTuple):
    """The sizes of a packed batch."""

    src: int
    """Rows of the source, filling included."""
    tgt: int
    sentences: int
    """Sentences, those of filling and empty ones included."""
    longest: int
    """A bound on their lengths, a power of two."""
    filling: int
    """Sentences of filling."""

    @property
    def numbers(self) -> int:
        """Numbers of a packed batch."""
        return 2 * self.src + 3 * self.tgt + 2 * (self.sentences + 1) + 1

    @staticmethod
    def of(src_lengths: Tensor, tgt_lengths: Tensor, tokens: int) -> Shape:
        """The shape for sentences of `src_lengths`, `tgt_lengths` [batch] where a full batch has `tokens` a side."""
        longest = max(_SHORTEST, _power(int(max(src_lengths.max(), tgt_lengths.max()))))
        step = -(-tokens // (STEPS * _MULTIPLE)) * _MULTIPLE
        # With so many sentences of filling the rows left over, fewer than a step beyond one each, always fit in.
        filling = -(-step // (longest - 1))
        src, tgt = (-(-(int(x.sum()) + filling) // step) * step for x in (src_lengths, tgt_lengths))
        return Shape(src, tgt, _rounded(len(src_lengths) + filling), longest, filling)


class Packed(NamedTuple):
    """A packed batch on its device, as views of one array."""

    src: Tensor
    """[src] pieces."""
    src_positions: Tensor
    """[src] places in their sentences, 0 for filling."""
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_positions: Tensor
    src_segments: Segments
    tgt_segments: Segments
    tokens: Tensor
    """Scalar: the target tokens that the loss is divided by."""


def pack(batch: Batch, shape: Shape, tokens: int) -> Tensor:
    """`batch` as one array [shape.numbers] int64 of the host: what `unpack` takes apart."""
    packed = np.zeros(shape.numbers, dtype=np.int64)
    src, src_positions, tgt_in, tgt_out, tgt_positions, src_starts, tgt_starts = np.split(packed[:-1], _bounds(shape))
    sides = (
        (batch.src_lengths, ((src, batch.src),), src_positions, src_starts),
        (batch.tgt_lengths, ((tgt_in, batch.tgt_in), (tgt_out, batch.tgt_out)), tgt_positions, tgt_starts),
    )
    for lengths, pieces, positions, starts in sides:
        real = np.arange(pieces[0][1].shape[1]) < lengths.numpy()[:, None]
        count = int(lengths.sum())
        for into, rows in pieces:
            into[:count] = rows.numpy()[real]
        positions[:count] = np.nonzero(real)[1]
        _fill_starts(starts, lengths.numpy(), len(positions), shape.filling)
    packed[-1] = tokens
    return torch.from_numpy(packed)


def unpack(packed: Tensor, shape: Shape) -> Packed:
    """The parts of what `pack` made, on any device."""
    src, src_places, tgt_in, tgt_out, tgt_places, *starts = torch.tensor_split(packed[:-1], _bounds(shape))
    of_src, of_tgt = (Segments(rows.to(torch.int32), shape.longest) for rows in starts)
    return Packed(src, src_places, tgt_in, tgt_out, tgt_places, of_src, of_tgt, packed[-1])


def _bounds(shape: Shape) -> list[int]:
    sizes = (shape.src, shape.src, shape.tgt, shape.tgt, shape.tgt, shape.sentences + 1)
    return list(np.cumsum(sizes))


def _fill_starts(starts: Numbers, lengths: Numbers, rows: int, filling: int) -> None:
    """Write where sentences of `lengths`, then `filling` even ones and then empty ones begin on `rows` rows."""
    left = rows - int(lengths.sum())
    shares = np.full(filling, left // filling)
    shares[: left % filling] += 1
    ends = np.cumsum(np.concatenate((lengths, shares)))
    starts[1 : len(ends) + 1] = ends
    starts[len(ends) + 1 :] = rows


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _rounded(size: int) -> int:
    """`size` rounded up to two significant bits, at most by a half, so that there are few sizes."""
    unit = 1 << max(0, size.bit_length() - 2)
    return -(-size // unit) * unit


def tables(model: Transformer, shape: Shape, longest: int) -> list[Tensor | None]:
    """The rows of positions of source and target, [up to shape.longest, d_model] each, on the model's device.

    Raises CheckError where a sentence of `longest` pieces has no learned positions.
    """
    found: list[Tensor | None] = []
    for positions in (model.src_positions, model.tgt_positions):
        length = shape.longest
        if isinstance(positions, LearnedPositions):
            length = max(longest, min(length, positions.weight.shape[0]))
        like = model.embedding.detach().new_empty(()).expand(1, length, 1)
        found.append(None if positions is None else positions(like))
    return found


def hidden_states(model: Transformer, packed: Packed, rows: list[Tensor | None]) -> Tensor:
    """The hidden states [tgt, d_model] of `model` in training, as its `forward` gives them for each sentence.

    `rows` are those of `tables`.
    """
    x = _embed(model, packed.src, packed.src_positions, rows[0])
    for layer in cast("Iterable[EncoderLayer]", model.encoder):
        x = _self_attention(layer.attention, layer.attention_frame, x, packed.src_segments, False)
        x = _feed_forward(layer, x)
    memory = x if model.encoder_norm is None else model.encoder_norm(x)
    x = _embed(model, packed.tgt_in, packed.tgt_positions, rows[1])
    for block in cast("Iterable[DecoderLayer]", model.decoder):
        x = _self_attention(block.attention, block.attention_frame, x, packed.tgt_segments, block.causal)
        x = _cross_attention(block.cross, block.cross_frame, x, memory, packed)
        x = _feed_forward(block, x)
    return x if model.decoder_norm is None else model.decoder_norm(x)


def _embed(model: Transformer, pieces: Tensor, positions: Tensor, rows: Tensor | None) -> Tensor:
    scale = math.sqrt(model.config.d_model)
    vectors = functional.embedding(pieces, model.embedding)
    x = vectors * scale if rows is None else torch.add(functional.embedding(positions, rows), vectors, alpha=scale)
    drawn = model.embedding_dropout.kept(x)
    return x if drawn is None else x * drawn[0] * drawn[1]


def _self_attention(module: SelfAttention, frame: Residual, x: Tensor, segments: Segments, causal: bool) -> Tensor:
    keys = module.n_heads * module.d_k
    read = frame.enter(x)
    with record_function(ATTENTION_MARK):
        q, k, v = torch.split(module.qkv(read), [keys, keys, module.n_heads * module.d_v], dim=-1)
        y = _mixed(module, q, k, v, segments, segments, causal)
    return _leave(frame, x, y)


def _cross_attention(module: CrossAttention, frame: Residual, x: Tensor, memory: Tensor, packed: Packed) -> Tensor:
    read = frame.enter(x)
    with record_function(ATTENTION_MARK):
        k, v = torch.split(module.kv(memory), [module.n_heads * module.d_k, module.n_heads * module.d_v], dim=-1)
        y = _mixed(module, module.q(read), k, v, packed.tgt_segments, packed.src_segments, False)
    return _leave(frame, x, y)


def _mixed(
    module: Attention, q: Tensor, k: Tensor, v: Tensor, queries: Segments, keys: Segments, causal: bool
) -> Tensor:
    q, k, v = (x.view(x.shape[0], module.n_heads, -1) for x in (q, k, v))
    context = attend_packed(q, k, v, queries, keys, scale=module.scale, causal=causal)
    y: Tensor = module.out(context.flatten(1))
    return y


def _feed_forward(layer: EncoderLayer | DecoderLayer, x: Tensor) -> Tensor:
    frame = layer.feed_forward_frame
    return _leave(frame, x, layer.feed_forward(frame.enter(x)))


def _leave(frame: Residual, x: Tensor, y: Tensor) -> Tensor:
    """`frame.leave(x, y)`, with one operator less. The scale stays out of half precision, which would shift it."""
    drawn = frame.dropout.kept(y)
    total = x + y if drawn is None else torch.add(x, y * drawn[0], alpha=drawn[1])
    return total if frame.pre else cast("Tensor", frame.norm(total))
