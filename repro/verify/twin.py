"""The whole model against `torch.nn.Transformer` with the same weights: outputs and gradients, both norms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from repro.config import TransformerConfig
from repro.data.pieces import PAD
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.verify.check import Claim, at_most
from repro.verify.toys import VOCABULARY, largest, padded, sentences, targets

Norm = Literal["post", "pre"]
NORMS: tuple[Norm, ...] = ("post", "pre")

_PARTS = {
    "attention.qkv.weight": "self_attn.in_proj_weight",
    "attention.qkv.bias": "self_attn.in_proj_bias",
    "attention.out.weight": "self_attn.out_proj.weight",
    "attention.out.bias": "self_attn.out_proj.bias",
    "attention_frame.norm.weight": "norm1.weight",
    "attention_frame.norm.bias": "norm1.bias",
    "cross.out.weight": "multihead_attn.out_proj.weight",
    "cross.out.bias": "multihead_attn.out_proj.bias",
    "cross_frame.norm.weight": "norm2.weight",
    "cross_frame.norm.bias": "norm2.bias",
    "feed_forward.inner.weight": "linear1.weight",
    "feed_forward.inner.bias": "linear1.bias",
    "feed_forward.outer.weight": "linear2.weight",
    "feed_forward.outer.bias": "linear2.bias",
}
"""A layer's parts under our names and torch's, but for what `_renamed` has to join."""


def _claims() -> tuple[Claim, ...]:
    return tuple(
        at_most(
            f"torch.{norm}-norm-{what}",
            f"{norm}-norm Transformer: {what} against torch's with the same weights, padding and mask included",
            source="torch.nn.Transformer",
            limit=1e-5,
            got=partial(_distance, norm, what),
        )
        for norm in NORMS
        for what in ("outputs", "gradients")
    )


def _distance(norm: Norm, what: str) -> float:
    return _distances(norm)[what]


def _distances(norm: Norm) -> dict[str, float]:
    """The largest differences between our model and torch's, of outputs and of all gradients."""
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4, dropout=0.0, norm=norm)
    model = build_model(config, VOCABULARY, 1)
    assert isinstance(model, Transformer)
    _spread(model)
    twin = _torchs(config)
    twin.load_state_dict(_renamed(dict(model.state_dict())))
    matrix = model.embedding.detach().clone().requires_grad_()

    src, tgt = padded(sentences(4, 8, seed=1)), targets(sentences(4, 7, seed=2))
    real = tgt != PAD
    ours = model(src, src != PAD, tgt)[real]
    theirs = twin(
        _embedded(matrix, src),
        _embedded(matrix, tgt),
        tgt_mask=torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1),
        src_key_padding_mask=src == PAD,
        tgt_key_padding_mask=tgt == PAD,
        memory_key_padding_mask=src == PAD,
    )[real]
    share = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    (ours * share).mean().backward()
    (theirs * share).mean().backward()
    gradients = _renamed({name: _gradient(part) for name, part in model.named_parameters()})
    pairs = [(gradients[name], _gradient(part)) for name, part in twin.named_parameters()]
    pairs.append((_gradient(model.embedding), _gradient(matrix)))
    return {"outputs": largest(ours - theirs), "gradients": max(largest(a - b) for a, b in pairs)}


def _spread(model: Transformer) -> None:
    """Biases and LayerNorms away from 0 and 1, so that a misplaced one shows."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def _torchs(config: TransformerConfig) -> nn.Transformer:
    """torch's model of the same shape. Only pre-norm has a final LayerNorm, in the paper's model there is none."""
    d, heads, width, pre = config.d_model, config.n_heads, config.d_ff, config.norm == "pre"
    final = [nn.LayerNorm(d, eps=1e-6) if pre else None for _ in range(2)]
    encoder_layer = nn.TransformerEncoderLayer(
        d, heads, width, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=pre
    )
    decoder_layer = nn.TransformerDecoderLayer(
        d, heads, width, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=pre
    )
    n = config.n_layers
    encoder = nn.TransformerEncoder(encoder_layer, n, final[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, n, final[1])
    return nn.Transformer(d, heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights, or their gradients, under torch's names; the embedding is left out, torch's model has none."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        side, *rest = name.split(".")
        if side in ("encoder_norm", "decoder_norm"):
            renamed[f"{side.removesuffix('_norm')}.norm.{rest[0]}"] = tensor
        elif side in ("encoder", "decoder"):
            part, layer = ".".join(rest[1:]), f"{side}.layers.{rest[0]}"
            if part.startswith("cross.q."):
                kind = rest[-1]
                memory = tensors[f"{side}.{rest[0]}.cross.kv.{kind}"]
                renamed[f"{layer}.multihead_attn.in_proj_{kind}"] = torch.cat((tensor, memory))
            elif part.startswith("feed_forward_frame.norm."):
                renamed[f"{layer}.norm{2 if side == 'encoder' else 3}.{rest[-1]}"] = tensor
            elif not part.startswith("cross.kv."):
                renamed[f"{layer}.{_PARTS[part]}"] = tensor
    return renamed


def _embedded(matrix: Tensor, pieces: Tensor) -> Tensor:
    """Embeddings times sqrt(d_model) plus the sinusoids of section 3.5, number by number."""
    d = matrix.shape[1]
    rows = [
        [(math.sin, math.cos)[i % 2](position / 10000 ** ((i - i % 2) / d)) for i in range(d)]
        for position in range(pieces.shape[1])
    ]
    return matrix[pieces] * math.sqrt(d) + torch.tensor(rows)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "every parameter has a gradient"
    return parameter.grad


CLAIMS: tuple[Claim, ...] = _claims()
