"""The Transformer (Vaswani et al. 2017, section 3), with every option of its configuration."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.config import TransformerConfig
from repro.data.pieces import PAD
from repro.models import fused
from repro.models.attention import CrossAttention, SelfAttention, key_mask
from repro.models.dropout import Dropout, RandomSource
from repro.models.incremental import Reserve, TransformerState
from repro.models.linear import Linear
from repro.models.positions import LearnedPositions, SinusoidalPositions, build_positions
from repro.models.seq2seq import Output, Seq2Seq

NORM_EPS = 1e-6


class Memory(NamedTuple):
    """The encoded source."""

    states: Tensor
    """[batch, src_len, d_model]"""
    mask: Tensor | None
    """[batch, 1, 1, src_len] bool, True on real pieces; None where there is no padding."""


class AttentionMaps(NamedTuple):
    """The attention weights of every layer, each [batch, n_heads, q_len, k_len]."""

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (eq. 2)."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__()
        self.inner = Linear(config.d_model, config.d_ff)
        self.outer = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout, random)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to [..., d_model]."""
        y: Tensor = self.outer(self.dropout(self.inner(x, relu=True)))
        return y


class Residual(nn.Module):
    """A sub-layer's frame: LayerNorm(x + Dropout(sublayer(x))), or with pre-norm x + Dropout(sublayer(norm(x)))."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=NORM_EPS)
        self.dropout = Dropout(config.dropout, random)

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        y: Tensor = self.norm(x) if self.pre else x
        return y

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The frame's output from its input `x` and the sub-layer's output `y`."""
        total: Tensor = x + self.dropout(y)
        return total if self.pre else self.norm(total)


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__()
        self.attention = SelfAttention(config, random)
        self.attention_frame = Residual(config, random)
        self.feed_forward = FeedForward(config, random)
        self.feed_forward_frame = Residual(config, random)

    def forward(self, x: Tensor, mask: Tensor | None, maps: list[Tensor] | None = None) -> Tensor:
        """[batch, src_len, d_model] to the same; `mask` [batch, 1, 1, src_len]."""
        frame = self.attention_frame
        x = frame.leave(x, self.attention(frame.enter(x), mask=mask, maps=maps))
        frame = self.feed_forward_frame
        return frame.leave(x, self.feed_forward(frame.enter(x)))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the memory, then the feed-forward network."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__()
        self.causal = config.causal_mask
        self.attention = SelfAttention(config, random)
        self.attention_frame = Residual(config, random)
        self.cross = CrossAttention(config, random)
        self.cross_frame = Residual(config, random)
        self.feed_forward = FeedForward(config, random)
        self.feed_forward_frame = Residual(config, random)

    def forward(
        self, x: Tensor, memory: Memory, maps: AttentionMaps | None = None, tgt_mask: Tensor | None = None
    ) -> Tensor:
        """[batch, tgt_len, d_model] to the same; `tgt_mask` [batch, 1, 1, tgt_len], for a layer without causal mask.

        Padding of the target stands at the end, where the causal mask alone keeps it from every real position.
        """
        frame = self.attention_frame
        seen = maps.decoder if maps else None
        y = self.attention(frame.enter(x), mask=None if self.causal else tgt_mask, causal=self.causal, maps=seen)
        x = frame.leave(x, y)
        k, v = self.cross.memory(memory.states)
        frame = self.cross_frame
        x = frame.leave(x, self.cross(frame.enter(x), k, v, mask=memory.mask, maps=maps.cross if maps else None))
        frame = self.feed_forward_frame
        return frame.leave(x, self.feed_forward(frame.enter(x)))


class Transformer(Seq2Seq[Memory, TransformerState]):
    """Encoder and decoder of `config.n_layers` layers each, over one vocabulary.

    One matrix embeds source and target, times sqrt(d_model), and is the layer before the softmax (section 3.4).
    Learned positions have a table for each side. Pre-norm has a final LayerNorm on both sides.
    """

    def __init__(self, config: TransformerConfig, vocabulary_size: int) -> None:
        super().__init__()
        config = config.resolved()
        self.config = config
        self.random = RandomSource()
        self.embedding = nn.Parameter(torch.empty(vocabulary_size, config.d_model))
        self.src_positions, self.tgt_positions = build_positions(config), build_positions(config)
        self.embedding_dropout = Dropout(config.dropout, self.random)
        self.encoder = nn.ModuleList(EncoderLayer(config, self.random) for _ in range(config.n_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, self.random) for _ in range(config.n_layers))
        final = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.d_model, eps=NORM_EPS) if final else None
        self.decoder_norm = nn.LayerNorm(config.d_model, eps=NORM_EPS) if final else None
        self.max_positions = config.max_positions if config.positions == "learned" else None

    def initialise(self, generator: torch.Generator) -> None:
        """Glorot-uniform projections, zero biases, unit LayerNorms, embeddings N(0, d_model^-0.5).

        The fans are those of W^Q, W^K, W^V and W^O each as one matrix over all heads (d_model by n_heads * width); the
        packing does not widen them. The authors' first code drew what is packed as one matrix, and so from a narrower
        range. Learned positions start as the embeddings do.
        """
        std = self.config.d_model**-0.5
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, SelfAttention | CrossAttention):
                for matrix in (*module.projections(), module.out.weight):
                    _glorot(matrix, generator)
            elif isinstance(module, FeedForward):
                _glorot(module.inner.weight, generator)
                _glorot(module.outer.weight, generator)
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.weight, std=std, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding, std=std, generator=generator)

    def forward(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        """Hidden states [batch, tgt_len, d_model]: `decode(tgt_in, encode(src, src_mask))`, or fused the same."""
        if self.fused and fused.serves(self, src_mask, tgt_in):
            return fused.hidden_states(self, src, src_mask, tgt_in)
        return super().forward(src, src_mask, tgt_in)

    def encode(self, src: Tensor, src_mask: Tensor, maps: list[Tensor] | None = None) -> Memory:
        """The memory of `src` [batch, src_len] with `src_mask` [batch, src_len]; `maps` collects attention weights."""
        mask = key_mask(src_mask)
        x = self._embed(src, self.src_positions)
        for layer in self.encoder:
            x = layer(x, mask, maps)
        return Memory(x if self.encoder_norm is None else self.encoder_norm(x), mask)

    def decode(self, tgt_in: Tensor, memory: Memory, maps: AttentionMaps | None = None) -> Tensor:
        """Hidden states [batch, tgt_len, d_model] for `tgt_in` [batch, tgt_len]; `maps` collects attention weights.

        Without the causal mask a position sees the pieces that it is to foretell; `advance` never has any to see.
        """
        x = self._embed(tgt_in, self.tgt_positions)
        tgt_mask = None if self.config.causal_mask else key_mask(tgt_in != PAD)
        for layer in self.decoder:
            x = layer(x, memory, maps, tgt_mask)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def attention_maps(self, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> AttentionMaps:
        """The attention weights of every layer and head while `tgt_in` is read; arguments as `forward`'s."""
        maps = AttentionMaps([], [], [])
        self.decode(tgt_in, self.encode(src, src_mask, maps.encoder), maps)
        return maps

    def output(self) -> Output:
        """The embedding matrix, without a bias (section 3.4)."""
        return Output(self.embedding)

    def start(self, memory: Memory, beam: int) -> TransformerState:
        """The state before the first piece; the memory's keys and values are computed here, once a sentence."""
        with torch.no_grad():
            return TransformerState(list(self.decoder), memory, beam)  # type: ignore[arg-type]

    def reserve(self) -> Reserve:
        """The layers made ready, and memory for keys and values."""
        with torch.no_grad():
            return Reserve(list(self.decoder))  # type: ignore[arg-type]

    def begin(self, memory: Memory, reserve: Reserve) -> TransformerState:
        """`start` for one hypothesis a sentence, with what is in `reserve`."""
        with torch.no_grad():
            return TransformerState(list(self.decoder), memory, 1, reserve)  # type: ignore[arg-type]

    def advance(self, pieces: Tensor, state: TransformerState) -> Tensor:
        """Hidden states [sentences * beam, d_model] after one more piece `pieces` [sentences * beam] each.

        The beam takes the place of the target length: its hypotheses are queries side by side, on one copy of the
        memory and, each through its ancestry, on one store of the generated pieces' keys and values.
        """
        with torch.no_grad():
            x = self._vectors(state.enter(pieces)[:, None], self.tgt_positions, state.position).squeeze(1)
            slots, scores = state.open_slots(), state.grow()
            for layer, own, memory in zip(state.prepared, slots, state.memory, strict=True):
                x = layer.advance(x, own, scores, memory, state.padding_scores)
            x = state.leave(x)
            return x if self.decoder_norm is None else self.decoder_norm(x)

    def _embed(self, pieces: Tensor, positions: SinusoidalPositions | LearnedPositions | None) -> Tensor:
        """`_vectors` from the first position on, with dropout."""
        dropped: Tensor = self.embedding_dropout(self._vectors(pieces, positions))
        return dropped

    def _vectors(
        self, pieces: Tensor, positions: SinusoidalPositions | LearnedPositions | None, start: int = 0
    ) -> Tensor:
        """[batch, length, d_model] for `pieces` [batch, length] at positions start .. start + length - 1."""
        vectors = functional.embedding(pieces, self.embedding)
        scale = math.sqrt(self.config.d_model)
        return vectors * scale if positions is None else torch.add(positions(vectors, start), vectors, alpha=scale)


def _glorot(matrix: Tensor, generator: torch.Generator) -> None:
    nn.init.xavier_uniform_(matrix, generator=generator)
