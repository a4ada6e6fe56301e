"""A trained Transformer of this project as a model of CTranslate2 and as a Marian model of `transformers`."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
from typing import Any

import torch
from torch import Tensor, nn

from repro.config import TransformerConfig
from repro.config.run import ModelConfig
from repro.data.pieces import BOS, EOS, PAD, UNK
from repro.errors import UsageError
from repro.models.positions import sinusoids
from repro.models.transformer import NORM_EPS, DecoderLayer, EncoderLayer, FeedForward, Transformer

_SIZES = ("n_layers", "d_model", "d_ff", "n_heads", "dropout", "attention_dropout", "activation_dropout")


def refuse_others(config: ModelConfig, where: str) -> None:
    """Raise UsageError unless `config` is a Transformer as in the paper: the others have no form for its options."""
    if not isinstance(config, TransformerConfig):
        what = f"a model of the family {config.family}; only a Transformer can be converted"
        raise UsageError(what, where=where, fix="choose a run of the row base")
    paper = TransformerConfig(**{size: getattr(config, size) for size in _SIZES}).resolved()
    free = {*_SIZES, "sinusoid_layout", "max_positions"}
    for field in dataclasses.fields(TransformerConfig):
        name = field.name
        told, wanted = (getattr(this, name) for this in (config.resolved(), paper))
        if name not in free and told != wanted:
            what = f"model.{name} is {told}; only a Transformer with the paper's options can be converted"
            raise UsageError(what, where=where, fix="choose a run of the row base")


def ctranslate2_translator(model: Transformer, positions: int) -> Any:
    """A `ctranslate2.Translator` with the weights of `model`, for sentences of up to `positions` pieces.

    In float32 and one thread; a piece is spelt as its number.

    Raises ModuleNotFoundError where ctranslate2 is not installed.
    """
    ctranslate2: Any = importlib.import_module("ctranslate2")
    specs: Any = importlib.import_module("ctranslate2.specs")
    config = model.config
    spec = specs.TransformerSpec.from_config(config.n_layers, config.n_heads, pre_norm=False)
    embedding = _plain(model.embedding)
    table = sinusoids(positions, config.d_model, config.sinusoid_layout)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = table
    for theirs, ours in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(ours, EncoderLayer)
        _attention_spec(theirs.self_attention, [ours.attention.qkv, ours.attention.out], ours.attention_frame.norm)
        _feed_forward_spec(theirs.ffn, ours.feed_forward, ours.feed_forward_frame.norm)
    for theirs, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        _attention_spec(theirs.self_attention, [layer.attention.qkv, layer.attention.out], layer.attention_frame.norm)
        _attention_spec(theirs.attention, [layer.cross.q, layer.cross.kv, layer.cross.out], layer.cross_frame.norm)
        _feed_forward_spec(theirs.ffn, layer.feed_forward, layer.feed_forward_frame.norm)
    pieces = [str(piece) for piece in range(embedding.shape[0])]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    told = spec.config
    told.bos_token, told.eos_token, told.unk_token, told.decoder_start_token = (str(p) for p in (BOS, EOS, UNK, BOS))
    told.layer_norm_epsilon = NORM_EPS
    with tempfile.TemporaryDirectory() as directory:
        spec.validate()
        spec.optimize()
        spec.save(directory)
        return ctranslate2.Translator(directory, compute_type="float32", inter_threads=1, intra_threads=1)


def _attention_spec(spec: Any, linears: list[nn.Linear], norm: nn.LayerNorm) -> None:
    for theirs, ours in zip(spec.linear, linears, strict=True):
        _linear_spec(theirs, ours)
    _norm_spec(spec.layer_norm, norm)


def _feed_forward_spec(spec: Any, feed_forward: FeedForward, norm: nn.LayerNorm) -> None:
    _linear_spec(spec.linear_0, feed_forward.inner)
    _linear_spec(spec.linear_1, feed_forward.outer)
    _norm_spec(spec.layer_norm, norm)


def _linear_spec(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _plain(linear.weight), _plain(linear.bias)


def _norm_spec(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _plain(norm.weight), _plain(norm.bias)


def marian_model(model: Transformer, positions: int) -> Any:
    """A `transformers.MarianMTModel` with the weights of `model`, for sentences of up to `positions` pieces.

    It is in evaluation mode; the three pieces that are never generated get a logit that is never chosen. Raises
    ModuleNotFoundError where transformers is not installed.
    """
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    config = model.config
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", config.n_layers),
            ("attention_heads", config.n_heads),
            ("ffn_dim", config.d_ff),
        )
    }
    marian = transformers.MarianMTModel(
        transformers.MarianConfig(
            **sizes,
            vocab_size=model.embedding.shape[0],
            d_model=config.d_model,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=positions,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            decoder_start_token_id=BOS,
            attn_implementation="sdpa",
        )
    )
    weights = {name: _plain(tensor) for name, tensor in _marian_weights(model, positions)}
    bias = torch.zeros(1, model.embedding.shape[0])
    bias[0, [PAD, UNK, BOS]] = -1e9
    weights["final_logits_bias"] = bias
    marian.load_state_dict(weights)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = NORM_EPS
    return marian.eval()


def _marian_weights(model: Transformer, positions: int) -> list[tuple[str, Tensor]]:
    """Every tensor of `model` by its name in the Marian model."""
    config = model.config
    table = sinusoids(positions, config.d_model, config.sinusoid_layout)
    found: list[tuple[str, Tensor]] = [("model.shared.weight", model.embedding), ("lm_head.weight", model.embedding)]
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        found += [
            (f"model.{side}.embed_tokens.weight", model.embedding),
            (f"model.{side}.embed_positions.weight", table),
        ]
        for number, layer in enumerate(layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            at = f"model.{side}.layers.{number}."
            found += _marian_attention(f"{at}self_attn", [layer.attention.qkv], layer.attention.out)
            found += _marian_pair(f"{at}self_attn_layer_norm", layer.attention_frame.norm)
            if isinstance(layer, DecoderLayer):
                found += _marian_attention(f"{at}encoder_attn", [layer.cross.q, layer.cross.kv], layer.cross.out)
                found += _marian_pair(f"{at}encoder_attn_layer_norm", layer.cross_frame.norm)
            found += _marian_pair(f"{at}fc1", layer.feed_forward.inner)
            found += _marian_pair(f"{at}fc2", layer.feed_forward.outer)
            found += _marian_pair(f"{at}final_layer_norm", layer.feed_forward_frame.norm)
    return found


def _marian_attention(at: str, stacked: list[nn.Linear], out: nn.Linear) -> list[tuple[str, Tensor]]:
    """Queries, keys and values apart, from our stacked matrices, and the output projection."""
    weights = torch.cat([linear.weight for linear in stacked]).chunk(3)
    biases = torch.cat([linear.bias for linear in stacked]).chunk(3)
    found: list[tuple[str, Tensor]] = []
    for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
        found += [(f"{at}.{name}.weight", weight), (f"{at}.{name}.bias", bias)]
    return found + _marian_pair(f"{at}.out_proj", out)


def _marian_pair(at: str, module: nn.Linear | nn.LayerNorm) -> list[tuple[str, Tensor]]:
    return [(f"{at}.weight", module.weight), (f"{at}.bias", module.bias)]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()
