"""Convolutional sequence to sequence learning (Gehring et al., 2017).

Each layer is a convolution with gated linear units in a residual frame; every decoder layer attends. Sums of two are
scaled by sqrt(0.5), so that the variance stays (section 3.4). A convolution is one matrix product over windows of the
input: in training those of all positions, in search the last one, which the state keeps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.config.baselines import ConvS2SConfig
from repro.models.dropout import Dropout, RandomSource
from repro.models.embeddings import Embeddings, Logits
from repro.models.positions import LearnedPositions
from repro.models.seq2seq import Output, Seq2Seq
from repro.models.source import Source, attend

ROOT_HALF = math.sqrt(0.5)


class Affine(NamedTuple):
    """A weight [d_out, d_in] and a bias [d_out], ready for use."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[..., d_in] to [..., d_out]."""
        return functional.linear(x, self.weight, self.bias)


class NormedLinear(nn.Module):
    """A linear layer with weight normalisation: each row of the weight is gain * direction / |direction|
    (Salimans and Kingma, 2016, eq. 2)."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(d_out, d_in))
        self.gain = nn.Parameter(torch.empty(d_out))
        self.bias = nn.Parameter(torch.empty(d_out))

    def initialise(self, variance: float, generator: torch.Generator) -> None:
        """Weights N(0, variance / d_in), so that the gain starts as the rows' norms; zero biases."""
        std = math.sqrt(variance / self.direction.shape[1])
        nn.init.normal_(self.direction, std=std, generator=generator)
        with torch.no_grad():
            self.gain.copy_(self.direction.norm(dim=1))
        nn.init.zeros_(self.bias)

    def affine(self) -> Affine:
        """The layer's weight and bias as they are now."""
        return Affine(self.direction * (self.gain / self.direction.norm(dim=1))[:, None], self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_in] to [..., d_out]."""
        return self.affine()(x)


class Convolution(nn.Module):
    """Gated linear units over windows of `kernel` positions, and the map of a residual whose width changes."""

    def __init__(self, d_in: int, width: int, kernel: int) -> None:
        super().__init__()
        self.d_in, self.kernel = d_in, kernel
        self.gated = NormedLinear(kernel * d_in, 2 * width)
        self.residual = None if d_in == width else NormedLinear(d_in, width)

    def windows(self, x: Tensor, before: int) -> Tensor:
        """[batch, length, kernel * d_in]: `before` positions before each one, itself and those after it, zeros outside
        the row, of `x` [batch, length, d_in]."""
        if self.kernel == 1:
            return x
        length = x.shape[1]
        padded = functional.pad(x, (0, 0, before, self.kernel - 1 - before))
        return torch.cat([padded[:, shift : shift + length] for shift in range(self.kernel)], -1)


class EncoderLayer(Convolution):
    """A convolution that sees as far ahead as back."""

    def forward(self, x: Tensor, mask: Tensor, dropout: Dropout) -> Tensor:
        """[batch, src_len, width] of `x` [batch, src_len, d_in] and `mask` [batch, src_len, 1]."""
        windows = self.windows(dropout(x) * mask, self.kernel // 2)
        y = functional.glu(self.gated(windows), -1)
        return (y + (x if self.residual is None else self.residual(x))) * ROOT_HALF


class DecoderAffines(NamedTuple):
    """A decoder layer's normalised weights, computed once for many pieces."""

    gated: Affine
    residual: Affine | None
    query: Affine
    context: Affine


class DecoderLayer(Convolution):
    """A convolution over past positions, then attention."""

    def __init__(self, d_in: int, width: int, kernel: int, d_embedding: int) -> None:
        super().__init__(d_in, width, kernel)
        self.query, self.context = NormedLinear(width, d_embedding), NormedLinear(d_embedding, width)

    def affines(self) -> DecoderAffines:
        """The layer's weights as they are now."""
        residual = None if self.residual is None else self.residual.affine()
        return DecoderAffines(self.gated.affine(), residual, self.query.affine(), self.context.affine())

    @staticmethod
    def mix(affines: DecoderAffines, x: Tensor, windows: Tensor, embedded: Tensor, source: Source) -> Tensor:
        """[n, queries, width] from inputs `x` [n, queries, d_in], their `windows` [n, queries, kernel * d_in] and the
        last pieces' vectors `embedded` [n, queries, d_embedding] (section 3.3)."""
        y = functional.glu(affines.gated(windows), -1)
        queries = (affines.query(y) + embedded) * ROOT_HALF
        context = attend(queries @ source.keys.transpose(1, 2), source)
        y = (affines.context(context) + y) * ROOT_HALF
        return (y + (x if affines.residual is None else affines.residual(x))) * ROOT_HALF


class ConvState:
    """Where incremental decoding stands, for `sentences` x `beam` rows."""

    def __init__(self, affines: list[DecoderAffines], past: list[Tensor], source: Source, beam: int) -> None:
        self.affines, self.past, self.source, self.beam = affines, past, source, beam
        # `past` holds, a layer each, the last kernel - 1 inputs side by side: [rows, (kernel - 1) * d_in].
        self.position = 0

    def window(self, layer: int, x: Tensor) -> Tensor:
        """The window [rows, kernel * d_in] that ends with the input `x` [rows, d_in] of this step."""
        whole = torch.cat((self.past[layer], x), -1)
        self.past[layer] = whole[:, x.shape[1] :]
        return whole

    def reorder(self, sentences: Tensor, beams: Tensor) -> None:
        """Keep `sentences` [n], and continue in each from its hypotheses `beams` [n, beam]."""
        rows = (sentences[:, None] * self.beam + beams).flatten()
        self.past = [part.index_select(0, rows) for part in self.past]
        self.source, self.beam = self.source.keep(sentences), beams.shape[1]


class ConvS2S(Seq2Seq[Source, ConvState]):
    """Convolutional encoder and decoder with learned positions on both sides."""

    def __init__(self, config: ConvS2SConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config, self.random, self.max_positions = config, RandomSource(), config.max_positions
        width = config.d_embedding
        self.embeddings = Embeddings(vocabulary_size, width, shared=config.tied_embeddings)
        # Unless it is a lookup table, the softmax layer is normalised as all layers are (section 3.5).
        tied = config.tied_embeddings
        self.logits = Logits(vocabulary_size, width, tied) if tied else NormedLinear(config.d_out, vocabulary_size)
        self.src_positions = LearnedPositions(config.max_positions, width)
        self.tgt_positions = LearnedPositions(config.max_positions, width)
        self.encoder_in = NormedLinear(width, config.encoder[0][0])
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for sizes in _sizes(config.encoder))
        self.encoder_out = NormedLinear(config.encoder[-1][0], width)
        self.decoder_in = NormedLinear(width, config.decoder[0][0])
        self.decoder = nn.ModuleList(DecoderLayer(*sizes, width) for sizes in _sizes(config.decoder))
        self.decoder_out = NormedLinear(config.decoder[-1][0], config.d_out)
        self.dropout = Dropout(config.dropout, self.random)

    def initialise(self, generator: torch.Generator) -> None:
        """As section 3.5: vectors N(0, 0.1^2), weights N(0, 1 / n) with n inputs; four times that variance before a
        gate, and the share of inputs kept times it where the input is dropped out. Biases zero."""
        kept = 1.0 - self.config.dropout
        for module in self.modules():
            if isinstance(module, Embeddings | LearnedPositions):
                for table in module.parameters():
                    nn.init.normal_(table, std=0.1, generator=generator)
            elif isinstance(module, Convolution):
                module.gated.initialise(4.0 * kept, generator)
            elif isinstance(module, Logits):
                nn.init.zeros_(module.bias)
        dropped = (self.encoder_in, self.decoder_in, self.logits)
        gated = [module.gated for module in self.modules() if isinstance(module, Convolution)]
        for module in self.modules():
            if isinstance(module, NormedLinear) and module not in gated:
                module.initialise(kept if module in dropped else 1.0, generator)

    def encode(self, src: Tensor, src_mask: Tensor) -> Source:
        """The memory of `src` [batch, src_len] with `src_mask` [batch, src_len]: keys are the encoder's outputs z,
        values z + e with the pieces' vectors e, times the root of the sentence's length (section 3.4).

        Raises CheckError for a sentence that is longer than `max_positions`.
        """
        embedded = self._embed(self.embeddings.source(src), self.src_positions)
        mask = src_mask[..., None].to(embedded.dtype)
        x = self.encoder_in(embedded)
        for layer in self.encoder:
            x = layer(x, mask, self.dropout)
        # Every attention sends a gradient back: their sum is scaled, that into the vectors is not (section 3.4).
        keys: Tensor = _ScaledGradient.apply(self.encoder_out(x), 0.5 / len(self.decoder))  # type: ignore[no-untyped-call]
        # The mean over m positions shrinks the variance by up to m: m * sqrt(1 / m) restores it.
        length = mask.sum(1, keepdim=True)
        return Source(keys, (keys + embedded) * (ROOT_HALF * length.sqrt()), src_mask)

    def decode(self, tgt_in: Tensor, memory: Source) -> Tensor:
        """Hidden states [batch, tgt_len, d_out] for `tgt_in` [batch, tgt_len]. CheckError past `max_positions`."""
        embedded = self._embed(self.embeddings.target(tgt_in), self.tgt_positions)
        x = self.decoder_in(embedded)
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            windows = layer.windows(self.dropout(x), layer.kernel - 1)
            x = layer.mix(layer.affines(), x, windows, embedded, memory)
        dropped: Tensor = self.dropout(self.decoder_out(x))
        return dropped

    def output(self) -> Output:
        """The layer before the softmax."""
        if isinstance(self.logits, NormedLinear):
            return Output(*self.logits.affine())
        return self.logits.output(self.embeddings)

    def start(self, memory: Source, beam: int) -> ConvState:
        """No past; the decoder's weights are normalised here, once."""
        layers = [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]
        rows = memory.keys.shape[0] * beam
        past = [memory.keys.new_zeros(rows, (layer.kernel - 1) * layer.d_in) for layer in layers]
        return ConvState([layer.affines() for layer in layers], past, memory, beam)

    def advance(self, pieces: Tensor, state: ConvState) -> Tensor:
        """Hidden states [rows, d_out] after one more piece `pieces` [rows] each. CheckError past `max_positions`.

        The hypotheses of a sentence are queries side by side on one copy of its source.
        """
        vectors = self.embeddings.target(pieces)[:, None]
        embedded = self._embed(vectors, self.tgt_positions, state.position).view(-1, state.beam, vectors.shape[-1])
        state.position += 1
        x = self.decoder_in(embedded)
        for i, affines in enumerate(state.affines):
            window = state.window(i, self.dropout(x).flatten(0, 1)).view(x.shape[0], state.beam, -1)
            x = DecoderLayer.mix(affines, x, window, embedded, state.source)
        dropped: Tensor = self.dropout(self.decoder_out(x)).flatten(0, 1)
        return dropped

    def _embed(self, vectors: Tensor, positions: LearnedPositions, start: int = 0) -> Tensor:
        """`vectors` [batch, length, d_embedding] plus the positions start .. start + length - 1, dropped out."""
        dropped: Tensor = self.dropout(vectors + positions(vectors, start))
        return dropped


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale, None


def _sizes(layers: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]]:
    """(input width, output width, kernel) of each layer of a side; the first one's input has its own width."""
    inputs = [layers[0][0], *(width for width, _ in layers)]
    return [(d_in, width, kernel) for d_in, (width, kernel) in zip(inputs, layers, strict=False)]
