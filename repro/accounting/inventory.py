"""The matrix products of the baselines, one by one: their parameters and their FLOPs follow from one list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from repro.config.baselines import BaselineConfig, ConvS2SConfig, GnmtConfig, LstmAttentionConfig, LstmConfig

Per = Literal["sentence", "src", "tgt"]
"""What a product is done for once: a sentence, a source position or a target position."""


class Product(NamedTuple):
    """A matrix [d_out, d_in] that multiplies a vector."""

    per: Per
    d_in: int
    d_out: int
    vectors: int = 1
    """Trained vectors of width d_out beside the matrix: a bias, two in an LSTM, a gain with weight normalisation."""
    kept: int = 1
    """How often its outputs are kept for the backward pass, about."""

    @property
    def multiply_adds(self) -> int:
        """Of one product."""
        return self.d_in * self.d_out

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        return (self.d_in + self.vectors) * self.d_out


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a model is made of, but for the layer before the softmax."""

    products: tuple[Product, ...]
    attention: int
    """Multiply-adds for each pair of a target and a source position, all layers together."""
    others: int
    """Parameters in no product: tables of vectors and of positions."""
    d_out: int
    """Width of the states before the softmax."""
    logits: int
    """Parameters of the layer before the softmax, where its matrix is no table, and its bias."""

    def multiply_adds(self, *per: Per) -> int:
        """Of all products done once for each of `per`."""
        return sum(product.multiply_adds for product in self.products if product.per in per)

    @property
    def parameters(self) -> int:
        """Trained numbers of the whole model; a shared matrix counts once."""
        return sum(product.parameters for product in self.products) + self.others + self.logits


def inventory(config: BaselineConfig, vocabulary_size: int) -> Inventory:
    """The products of `config` over `vocabulary_size` pieces."""
    match config.family:
        case "lstm":
            return _lstm(config, vocabulary_size)
        case "lstm-attention":
            return _lstm_attention(config, vocabulary_size)
        case "gnmt":
            return _gnmt(config, vocabulary_size)
        case "convs2s":
            return _convs2s(config, vocabulary_size)


def _recurrent(per: Per, d_in: int, d_hidden: int) -> Product:
    """The four gates of an LSTM layer in one: input and state side by side, two biases.

    The fused kernel on a CPU was seen to keep four times the gates; others keep less.
    """
    return Product(per, d_in + d_hidden, 4 * d_hidden, vectors=2, kept=4)


def _assemble(
    config: BaselineConfig,
    products: list[Product],
    vocabulary_size: int,
    d_out: int,
    attention: int = 0,
    others: int = 0,
) -> Inventory:
    tied = config.tied_embeddings
    tables = vocabulary_size * config.d_embedding * (1 if tied else 2)
    logits = vocabulary_size * (1 if tied else d_out + 1)
    return Inventory(tuple(products), attention, tables + others, d_out, logits)


def _lstm(config: LstmConfig, vocabulary_size: int) -> Inventory:
    widths = [config.d_embedding] + [config.d_hidden] * (config.n_layers - 1)
    products = [_recurrent("src", width, config.d_hidden) for width in widths]
    products += [_recurrent("tgt", width, config.d_hidden) for width in widths]
    return _leave(config, products, vocabulary_size)


def _leave(
    config: LstmConfig | GnmtConfig, products: list[Product], vocabulary_size: int, attention: int = 0, others: int = 0
) -> Inventory:
    """With a map down to the width of the vectors where they are tied and of another width."""
    d_out = config.d_embedding if config.tied_embeddings else config.d_hidden
    if d_out != config.d_hidden:
        products = [*products, Product("tgt", config.d_hidden, d_out)]
    return _assemble(config, products, vocabulary_size, d_out, attention, others)


def _lstm_attention(config: LstmAttentionConfig, vocabulary_size: int) -> Inventory:
    e, h, a, n = config.d_embedding, config.d_hidden, config.d_attention, config.decoder_layers
    widths = [e] + [2 * h] * (config.encoder_layers - 1)
    products = [_recurrent("src", width, h) for width in widths for _ in range(2)]
    products += [Product("src", 2 * h, a, vectors=0), Product("sentence", h, n * h)]
    products += [_recurrent("tgt", e, h), Product("tgt", h, a, vectors=0)]
    products += [_recurrent("tgt", 3 * h, h)] * (n - 1)
    products += [Product("tgt", 3 * h + e, 2 * config.d_out)]
    return _assemble(config, products, vocabulary_size, config.d_out, attention=a + 2 * h, others=a)


def _gnmt(config: GnmtConfig, vocabulary_size: int) -> Inventory:
    e, h, a, later = config.d_embedding, config.d_hidden, config.d_attention, config.n_layers - 1
    products = [_recurrent("src", e, h)] * 2
    products += [_recurrent("src", 2 * h if i == 0 else h, h) for i in range(later)]
    products += [Product("src", h, a, vectors=0)]
    products += [_recurrent("tgt", e, h), Product("tgt", h, a, vectors=0)]
    products += [_recurrent("tgt", 2 * h, h)] * later
    return _leave(config, products, vocabulary_size, attention=a + h, others=a)


def _convs2s(config: ConvS2SConfig, vocabulary_size: int) -> Inventory:
    e = config.d_embedding
    products = _convolutions("src", config.encoder, e, e) + _convolutions("tgt", config.decoder, e, config.d_out)
    for width, _ in config.decoder:
        products += [_normed("tgt", width, e), _normed("tgt", e, width)]
    attention = 2 * e * len(config.decoder)
    made = _assemble(config, products, vocabulary_size, config.d_out, attention, others=2 * config.max_positions * e)
    gains = 0 if config.tied_embeddings else vocabulary_size
    return Inventory(made.products, made.attention, made.others, made.d_out, made.logits + gains)


def _convolutions(per: Per, layers: tuple[tuple[int, int], ...], d_in: int, d_out: int) -> list[Product]:
    """A side's convolutions, residuals that change the width, and the maps into and out of them."""
    products, width_before = [_normed(per, d_in, layers[0][0])], layers[0][0]
    for width, kernel in layers:
        products.append(_normed(per, kernel * width_before, 2 * width))
        if width != width_before:
            products.append(_normed(per, width_before, width))
        width_before = width
    return [*products, _normed(per, width_before, d_out)]


def _normed(per: Per, d_in: int, d_out: int) -> Product:
    return Product(per, d_in, d_out, vectors=2)
