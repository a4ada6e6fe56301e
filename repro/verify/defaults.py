"""The paper's own numbers as the defaults of everything, and the weights that training starts from."""

from __future__ import annotations

import math

import torch

from repro.config import DecodeConfig, TrainConfig, TransformerConfig
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.verify.check import Claim, equal, near
from repro.verify.toys import largest

_PIECES = 2000


def _claims() -> tuple[Claim, ...]:
    return (
        equal(
            "defaults.model",
            "the base model's sizes",
            source="Table 3, base",
            expected="N=6 d_model=512 d_ff=2048 h=8 d_k=64 d_v=64 dropout=0.1",
            got=_model,
        ),
        equal(
            "defaults.options",
            "what the text says where the first code or toolkits do otherwise",
            source="sections 3.1, 3.2.1, 3.5 and 5.4",
            expected="post-norm, sinusoidal positions (interleaved), scaled scores, causal mask, "
            "no dropout inside sub-layers",
            got=_options,
        ),
        equal(
            "defaults.training",
            "batch, warm-up, optimizer, smoothing, averaging",
            source="sections 5.1, 5.3, 5.4; Table 3 averages no checkpoints",
            expected="25000 tokens, warm-up 4000, factor 1, Adam 0.9 0.98 1e-09, clipping 0, smoothing 0.1, averaged 0",
            got=_training,
        ),
        equal(
            "defaults.decoding",
            "beam search",
            source="section 6.1",
            expected="beam 4, alpha 0.6, gnmt penalty, source length + 50",
            got=_decoding,
        ),
        near(
            "defaults.embeddings",
            "spread of the embeddings before training",
            source="the authors' code: N(0, d_model^-0.5), 512^-0.5",
            expected=0.0441942,
            got=lambda: float(_base().embedding.detach().std()),
            within=0.0005,
        ),
        near(
            "defaults.glorot",
            "largest weight of W^Q before training",
            source="Glorot-uniform: sqrt(6 / (512 + 512))",
            expected=math.sqrt(6 / 1024),
            got=_largest_query_weight,
            within=1e-4,
        ),
        equal(
            "defaults.tied",
            "matrices with a row for each piece: source, target and softmax share one",
            source="section 3.4",
            expected=1,
            got=lambda: sum(parameter.shape[0] == _PIECES for parameter in _base().parameters()),
        ),
        near(
            "defaults.softmax-unscaled",
            "logits against states times the embedding matrix, which is multiplied by sqrt(d_model) at the inputs only",
            source="section 3.4",
            expected=0.0,
            got=_distance_of_logits,
            within=1e-5,
        ),
        equal(
            "defaults.norm-eps",
            "the number that keeps LayerNorm from dividing by zero",
            source="the authors' code",
            expected=1e-6,
            got=lambda: max(module.eps for module in _base().modules() if isinstance(module, torch.nn.LayerNorm)),
        ),
    )


def _base() -> Transformer:
    """The base model, of one layer to be quick, as training starts with it."""
    model = build_model(TransformerConfig(n_layers=1), _PIECES, 1)
    assert isinstance(model, Transformer)
    return model


def _model() -> str:
    c = TransformerConfig().resolved()
    sizes = f"N={c.n_layers} d_model={c.d_model} d_ff={c.d_ff} h={c.n_heads} d_k={c.d_k} d_v={c.d_v}"
    return f"{sizes} dropout={c.dropout:g}"


def _options() -> str:
    c = TransformerConfig()
    scores = "scaled scores" if c.scale_attention else "scores not scaled"
    scores += ", causal mask" if c.causal_mask else ", no mask"
    inside = "no dropout" if c.attention_dropout == c.activation_dropout == 0.0 else "dropout"
    return f"{c.norm}-norm, {c.positions} positions ({c.sinusoid_layout}), {scores}, {inside} inside sub-layers"


def _training() -> str:
    c = TrainConfig()
    adam = f"Adam {c.adam_beta1:g} {c.adam_beta2:g} {c.adam_eps:g}, clipping {c.clip_norm:g}"
    batch = f"{c.batch_tokens} tokens, warm-up {c.warmup_steps}, factor {c.learning_rate_factor:g}"
    return f"{batch}, {adam}, smoothing {c.label_smoothing:g}, averaged {c.average_checkpoints}"


def _decoding() -> str:
    c = DecodeConfig()
    return f"beam {c.beam}, alpha {c.alpha:g}, {c.length_penalty} penalty, source length + {c.extra_length}"


def _largest_query_weight() -> float:
    layer = _base().encoder[0].attention
    return largest(layer.projections()[0])  # type: ignore[operator,union-attr]


def _distance_of_logits() -> float:
    model = _base()
    states = torch.randn(3, 512, generator=torch.Generator().manual_seed(1))
    return largest(model.project(states) - states @ model.embedding.t())


CLAIMS: tuple[Claim, ...] = _claims()
