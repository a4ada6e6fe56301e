"""The Transformer (Vaswani et al. 2017, section 3), with every option of its configuration."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.config import TransformerConfig
from repro.data.pieces import PAD
from repro.models.attention import CrossAttention, SelfAttention, key_mask
from repro.models.dropout import Dropout, RandomSource
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
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout, random)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_model] to [..., d_model]."""
        y: Tensor = self.outer(self.dropout(torch.relu(self.inner(x))))
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
        return self.finish(x, k, v, memory.mask, maps.cross if maps else None)

    def finish(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, maps: list[Tensor] | None = None) -> Tensor:
        """Everything after self-attention; `k`, `v` [batch, n_heads, src_len, d_k or d_v] are the memory's."""
        frame = self.cross_frame
        x = frame.leave(x, self.cross(frame.enter(x), k, v, mask=mask, maps=maps))
        frame = self.feed_forward_frame
        return frame.leave(x, self.feed_forward(frame.enter(x)))


class LayerCache:
    """One decoder layer's keys and values: the memory's, and those of the pieces generated so far.

    The beam's hypotheses of a sentence share one store, in which the piece at step t of hypothesis b has the slot
    t * beam + b; nothing moves when the beam is reordered. `self_kv` holds room for more steps than were made.
    """

    def __init__(self, layer: DecoderLayer, memory: Memory, beam: int, steps: int) -> None:
        k, v = layer.cross.memory(memory.states)
        self.memory_kv = (k.contiguous(), v.contiguous())
        shape = (k.shape[0], k.shape[1], steps * beam)
        self.self_kv = (k.new_empty(*shape, k.shape[3]), v.new_empty(*shape, v.shape[3]))

    def append(self, k: Tensor, v: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store `k`, `v` [sentences, n_heads, beam, ...] after the `used` slots; all keys and values up to them."""
        end = used + k.shape[2]
        if end > self.self_kv[0].shape[2]:
            old_k, old_v = self.self_kv
            self.self_kv = (
                torch.cat((old_k, torch.empty_like(old_k)), 2),
                torch.cat((old_v, torch.empty_like(old_v)), 2),
            )
        keys, values = self.self_kv
        keys[:, :, used:end], values[:, :, used:end] = k, v
        return keys[:, :, :end], values[:, :, :end]

    def select(self, sentences: Tensor) -> None:
        """Keep the sentences `sentences` [n]."""
        k, v = self.memory_kv
        self.memory_kv = (k.index_select(0, sentences), v.index_select(0, sentences))
        k, v = self.self_kv
        self.self_kv = (k.index_select(0, sentences), v.index_select(0, sentences))


class TransformerState:
    """Where incremental decoding stands, for `sentences` x `beam` hypotheses."""

    def __init__(self, layers: list[LayerCache], memory: Memory, beam: int) -> None:
        self.layers, self.beam, self.position = layers, beam, 0
        self.memory_mask = memory.mask
        self.sentences = memory.states.shape[0]
        self._eye = torch.eye(beam, dtype=torch.bool, device=memory.states.device)
        # Row b of a sentence is True on the slots of hypothesis b's own pieces; its ancestors stand in any column.
        self._ancestry = self._eye.new_empty(self.sentences, 1, beam, 0)

    def grow(self) -> Tensor | None:
        """The self-attention mask [sentences, 1, beam, slots] once each hypothesis has one more piece."""
        self.position += 1
        if self.beam == 1:
            return None
        own = self._eye.expand(self.sentences, 1, self.beam, self.beam)
        self._ancestry = torch.cat((self._ancestry, own), dim=-1)
        return self._ancestry

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep `sentences` [n], and continue in each from its hypotheses `beams` [n, beam]."""
        kept = sentences.shape[0]
        if self.beam > 1:
            rows = (sentences[:, None] * self.beam + beams).flatten()
            self._ancestry = self._ancestry.flatten(0, 2).index_select(0, rows).view(kept, 1, self.beam, -1)
        if kept == self.sentences and torch.equal(sentences, torch.arange(kept, device=sentences.device)):
            return
        self.sentences = kept
        for layer in self.layers:
            layer.select(sentences)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, sentences)


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
        layers = [LayerCache(layer, memory, beam, steps=32) for layer in self.decoder]  # type: ignore[arg-type]
        return TransformerState(layers, memory, beam)

    def advance(self, pieces: Tensor, state: TransformerState) -> Tensor:
        """Hidden states [sentences * beam, d_model] after one more piece `pieces` [sentences * beam] each.

        The beam takes the place of the target length: its hypotheses are queries side by side, on one copy of the
        memory and, each through its ancestry, on one store of the generated pieces' keys and values.
        """
        position, used = state.position, state.position * state.beam
        x = self._embed(pieces.view(-1, 1), self.tgt_positions, position).view(state.sentences, state.beam, -1)
        mask = state.grow()
        for layer, cache in zip(self.decoder, state.layers, strict=True):
            assert isinstance(layer, DecoderLayer)
            frame = layer.attention_frame
            q, k, v = layer.attention.project(frame.enter(x))
            keys, values = cache.append(k, v, used)
            x = frame.leave(x, layer.attention.mix(q, keys, values, mask=mask))
            x = layer.finish(x, *cache.memory_kv, state.memory_mask)
        x = x.flatten(0, 1)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _embed(
        self, pieces: Tensor, positions: SinusoidalPositions | LearnedPositions | None, start: int = 0
    ) -> Tensor:
        """[batch, length, d_model] for `pieces` [batch, length] at positions start .. start + length - 1."""
        vectors = functional.embedding(pieces, self.embedding)
        scale = math.sqrt(self.config.d_model)
        x = vectors * scale if positions is None else torch.add(positions(vectors, start), vectors, alpha=scale)
        dropped: Tensor = self.embedding_dropout(x)
        return dropped


def _glorot(matrix: Tensor, generator: torch.Generator) -> None:
    nn.init.xavier_uniform_(matrix, generator=generator)
