"""Floating-point operations of a model's matrix products, from its sizes alone.

A multiply-add counts as two. Only matrix products count (not softmax, LayerNorm, ReLU or embedding look-ups), and
masked attention counts in full, causal or not: both as in torch's operator counter, whose counts these formulas equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repro.accounting.inventory import inventory
from repro.config import ModelConfig, TransformerConfig
from repro.config.baselines import BaselineConfig

BACKWARD_SHARE = 2
"""A backward pass has two products, for the gradients of both factors, for each product of the forward pass."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A set of sentence pairs as FLOPs see it: sums over the pairs of lengths and of products of two lengths.

    Lengths are in pieces with the marks that the model reads: source with its end mark, target as long as `tgt_in`.
    """

    sentences: int = 0
    src: int = 0
    tgt: int = 0
    src_src: int = 0
    src_tgt: int = 0
    tgt_tgt: int = 0

    @staticmethod
    def of(src_lengths: Any, tgt_lengths: Any) -> Lengths:
        """The sums over `src_lengths` [sentences] and `tgt_lengths` [sentences], integer arrays or tensors."""
        return Lengths(
            len(src_lengths),
            int(src_lengths.sum()),
            int(tgt_lengths.sum()),
            int((src_lengths * src_lengths).sum()),
            int((src_lengths * tgt_lengths).sum()),
            int((tgt_lengths * tgt_lengths).sum()),
        )

    @staticmethod
    def rectangle(sentences: int, src: int, tgt: int) -> Lengths:
        """The sums for `sentences` pairs that all have the lengths `src` and `tgt`: a padded batch."""
        n = sentences
        return Lengths(n, n * src, n * tgt, n * src * src, n * src * tgt, n * tgt * tgt)

    def __add__(self, other: Lengths) -> Lengths:
        """Both sets together."""
        return Lengths(
            self.sentences + other.sentences,
            self.src + other.src,
            self.tgt + other.tgt,
            self.src_src + other.src_src,
            self.src_tgt + other.src_tgt,
            self.tgt_tgt + other.tgt_tgt,
        )


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs by where they go."""

    source: int
    """Linear layers on source positions, the memory's keys and values among them."""
    target: int
    """Linear layers on target positions, without the one before the softmax."""
    attention: int
    """Scores and weighted sums: what grows with products of lengths."""
    softmax: int
    """The layer before the softmax."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.source + self.target + self.attention + self.softmax

    def times(self, factor: int) -> Flops:
        """Each part times `factor`."""
        return Flops(self.source * factor, self.target * factor, self.attention * factor, self.softmax * factor)


def forward_flops(config: ModelConfig, vocabulary_size: int, lengths: Lengths) -> Flops:
    """FLOPs of one forward pass over the pairs in `lengths`, to the logits of every target position."""
    match config.family:
        case "transformer":
            return _transformer(config.resolved(), vocabulary_size, lengths)
        case "lstm" | "lstm-attention" | "gnmt" | "convs2s":
            return _baseline(config, vocabulary_size, lengths)


def train_flops(config: ModelConfig, vocabulary_size: int, lengths: Lengths) -> Flops:
    """FLOPs of forward and backward pass over the pairs in `lengths`; the optimizer has no products."""
    return forward_flops(config, vocabulary_size, lengths).times(1 + BACKWARD_SHARE)


def _transformer(config: TransformerConfig, vocabulary_size: int, lengths: Lengths) -> Flops:
    d, n = config.d_model, config.n_layers
    assert config.d_k is not None
    assert config.d_v is not None
    keys, values = config.n_heads * config.d_k, config.n_heads * config.d_v
    # Multiply-adds a position: W^Q or W^K, W^V or W^O, and the two feed-forward products.
    to_keys, to_values, feed_forward = d * keys, d * values, 2 * d * config.d_ff
    self_attention = 2 * to_keys + 2 * to_values
    encoder_layer = self_attention + feed_forward
    decoder_layer = self_attention + (to_keys + to_values) + feed_forward
    memory = to_keys + to_values
    pairs_of_positions = lengths.src_src + lengths.tgt_tgt + lengths.src_tgt
    return Flops(
        source=2 * n * (encoder_layer + memory) * lengths.src,
        target=2 * n * decoder_layer * lengths.tgt,
        attention=2 * n * (keys + values) * pairs_of_positions,
        softmax=2 * d * vocabulary_size * lengths.tgt,
    )


def _baseline(config: BaselineConfig, vocabulary_size: int, lengths: Lengths) -> Flops:
    parts = inventory(config, vocabulary_size)
    of_source = parts.multiply_adds("src") * lengths.src + parts.multiply_adds("sentence") * lengths.sentences
    return Flops(
        source=2 * of_source,
        target=2 * parts.multiply_adds("tgt") * lengths.tgt,
        attention=2 * parts.attention * lengths.src_tgt,
        softmax=2 * parts.d_out * vocabulary_size * lengths.tgt,
    )
