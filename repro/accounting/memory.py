"""Device memory of training, from sizes alone: an estimate to plan with, not a measurement."""

from __future__ import annotations

from typing import Literal

from repro.accounting.inventory import inventory
from repro.accounting.parameters import parameters
from repro.config import ModelConfig, TrainConfig, TransformerConfig
from repro.config.baselines import BaselineConfig

ASSUMED_LENGTH = 32
"""Pieces of a sentence, where a square of lengths must be kept: explicit attention weights."""

PACKED_NUMBERS = 1024
"""Numbers of a sentence's keys a head up to which attention on a CPU is by products that keep its weights."""

Kind = Literal["cpu", "cuda"]
"""Where a run computes."""

FRAMEWORK_BYTES = 600 * 2**20
"""What a process takes beside its model: torch and its libraries (0.23 GB on a CPU, a CUDA context more), and the
kernels that oneDNN makes for the sizes of products that it meets (0.2 GB in an `ablate train --scale smoke`)."""

_CHUNK_NUMBERS: dict[Kind, int] = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Logits that the loss holds at once."""


def memory_bytes(config: ModelConfig, vocabulary_size: int, train: TrainConfig, *, on: Kind = "cuda") -> int:
    """Bytes that training `config` takes at its peak on a device of the kind `on`.

    16 bytes a parameter (value, gradient and Adam's two moments in fp32), 2 more where products run in bf16 (the copy
    that autocast keeps); for each position of a micro-batch what the backward pass needs again (`_transformer`); twice
    the widest layer's outputs, for the gradients in flight; the loss's two buffers of logits, on a GPU in bf16 and the
    copies of them that change type. What the framework itself takes (`FRAMEWORK_BYTES`) is left out, and what CUDA
    graphs hold: as much again as a pass, given up before a run counts as short of memory.

    Peaks measured on a CPU were 1.3 times the estimate for the Transformer and ConvS2S (batches of 1000 to 8000
    positions, 4000 and 16 000 pieces) and 0.7 times for GNMT; 1.7 times for a Transformer of 32 heads on sentences of
    100 pieces.
    """
    low = train.precision == "bf16" or (train.precision == "auto" and on == "cuda")
    product = 2 if low else 4
    count = parameters(config, vocabulary_size)
    positions = min(train.batch_tokens, train.micro_batch_tokens or train.batch_tokens)
    match config.family:
        case "transformer":
            saved, widest = _transformer(config.resolved(), product, fused=on == "cpu" and not low)
        case "lstm" | "lstm-attention" | "gnmt" | "convs2s":
            saved, widest = _baseline(config, product)
    rows = min(positions, max(256, _CHUNK_NUMBERS[on] // vocabulary_size))
    copies = product + 4 if low and on == "cuda" else 0
    logits = rows * vocabulary_size * (product + 4 + copies)
    return count * (16 + (product if low else 0)) + positions * (saved + 2 * widest * product) + logits


def _transformer(config: TransformerConfig, product: int, *, fused: bool) -> tuple[int, int]:
    """Bytes kept for the backward pass a position (one source and one target), and the widest layer's width.

    A self-attention keeps queries, keys, values and its context, and one sum a head; each sub-layer its residual sum
    (fp32), its LayerNorm's output and its dropout mask; a feed-forward layer its hidden layer. With attention dropout
    the weights are kept too, three times (softmax, mask, product), over sentences of ASSUMED_LENGTH; without it once
    where the pass is `fused` (`repro.models.fused_attention`) and heads are narrow, or keys and values of two widths.
    """
    assert config.d_k is not None
    assert config.d_v is not None
    d, h = config.d_model, config.n_heads
    masks = 1 if config.dropout else 0
    attention = h * 2 * (config.d_k + config.d_v) * product + 4 * h
    if config.attention_dropout:
        attention += 3 * h * ASSUMED_LENGTH * product
    elif fused and (config.d_k != config.d_v or ASSUMED_LENGTH * config.d_k <= PACKED_NUMBERS):
        attention += h * ASSUMED_LENGTH * product
    frame = d * (4 + product * (1 + masks))
    feed_forward = config.d_ff * product * (3 if config.activation_dropout else 1)
    encoder_layer = attention + feed_forward + 2 * frame
    decoder_layer = 2 * attention + feed_forward + 3 * frame
    embeddings = 2 * d * (4 + masks * 4)
    widest = max(config.d_ff, h * (2 * config.d_k + config.d_v))
    return config.n_layers * (encoder_layer + decoder_layer) + embeddings, widest


def _baseline(config: BaselineConfig, product: int) -> tuple[int, int]:
    """Bytes kept for the backward pass a position (one source and one target), and the widest layer's width.

    Each product keeps its input, with its dropout mask, and its outputs (an LSTM's gates, what a gated unit gates).
    The hidden layer of additive attention is computed anew and not kept.
    """
    products = inventory(config, 1).products
    inputs = 2 if config.dropout else 1
    saved = sum(inputs * part.d_in + part.kept * part.d_out for part in products if part.per != "sentence")
    return saved * product, max(max(part.d_in, part.d_out) for part in products)
