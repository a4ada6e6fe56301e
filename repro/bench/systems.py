"""What is timed: this project's update, and the same update made of what a user would take instead."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.bench.packages import build_system, installed
from repro.bench.shapes import Shape
from repro.config import RunConfig
from repro.data.pieces import PAD, Batch
from repro.models.positions import sinusoids
from repro.training.trainer import Trainer

SMOOTHING = 0.1
_LONGEST = 512


class System(Protocol):
    """One way to train the Transformer of a shape."""

    def steps(self, batches: Iterable[Batch]) -> list[float]:
        """One update on each of `batches`; the losses a target token. A GPU is waited for once, at the end."""


class Ours:
    """This project's trainer, as a run uses it: of the shape's model, or of `config`."""

    def __init__(self, shape: Shape, device: torch.device, config: RunConfig | None = None) -> None:
        self.trainer = Trainer(config or shape.config(device.type), shape.vocabulary_size, device)

    def steps(self, batches: Iterable[Batch]) -> list[float]:
        """One update on each of `batches`; the losses a target token."""
        for batch in batches:
            self.trainer.launch(batch)
        return [update.loss for update in self.trainer.settle()]


class Peer:
    """The update around a peer's model: torch's loss with label smoothing on logits, and torch's fused Adam."""

    def __init__(self, model: nn.Module, device: torch.device, clip_norm: float = 0.0) -> None:
        self.model, self.device, self._clip_norm = model.to(device).train(), device, clip_norm
        self._adam = torch.optim.Adam(
            (p for p in model.parameters() if p.requires_grad), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    def logits(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, vocabulary]."""
        raise NotImplementedError

    def steps(self, batches: Iterable[Batch]) -> list[float]:
        """One update on each of `batches`; the losses a target token."""
        return [float(loss) for loss in [self._step(batch) for batch in batches]]

    def _step(self, batch: Batch) -> Tensor:
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.logits(batch).flatten(0, 1)
            loss = functional.cross_entropy(
                logits, batch.tgt_out.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
            )
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        self._adam.step()
        return loss.detach()


class Torch(Peer):
    """torch.nn.Transformer, with dropout where the paper has it and nowhere else."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        super().__init__(_TorchModel(shape), device)

    def logits(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, vocabulary]."""
        logits: Tensor = self.model(batch)
        return logits


class _TorchModel(nn.Module):
    positions: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        c = shape.model
        self.embedding = nn.Embedding(shape.vocabulary_size, c.d_model)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        self.register_buffer("positions", sinusoids(_LONGEST, c.d_model), persistent=False)
        self.dropout = nn.Dropout(c.dropout)
        self.transformer = nn.Transformer(
            c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, dropout=c.dropout, batch_first=True
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.scale = math.sqrt(c.d_model)

    def _embed(self, pieces: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(pieces) * self.scale + self.positions[: pieces.shape[1]])
        return x

    def forward(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, vocabulary]."""
        padding = batch.src == PAD
        length = batch.tgt_in.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=batch.src.device).triu(1)
        hidden = self.transformer(
            self._embed(batch.src),
            self._embed(batch.tgt_in),
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return functional.linear(hidden, self.embedding.weight)


class Marian(Peer):
    """The Marian model of `transformers`, with fused attention."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.set_verbosity_error()
        c = shape.model
        config = transformers.MarianConfig(
            vocab_size=shape.vocabulary_size,
            d_model=c.d_model,
            encoder_layers=c.n_layers,
            decoder_layers=c.n_layers,
            encoder_attention_heads=c.n_heads,
            decoder_attention_heads=c.n_heads,
            encoder_ffn_dim=c.d_ff,
            decoder_ffn_dim=c.d_ff,
            activation_function="relu",
            dropout=c.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            max_position_embeddings=_LONGEST,
            pad_token_id=PAD,
            decoder_start_token_id=PAD,
            attn_implementation="sdpa",
        )
        model = transformers.MarianMTModel(config)
        for table in (model.model.encoder.embed_positions, model.model.decoder.embed_positions):
            table.weight.requires_grad_(False)  # sinusoids
        super().__init__(model, device)

    def logits(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, vocabulary]."""
        told = self.model(
            input_ids=batch.src, attention_mask=batch.src_mask.long(), decoder_input_ids=batch.tgt_in, use_cache=False
        )
        logits: Tensor = told.logits
        return logits


SYSTEMS: dict[str, Callable[[Shape, torch.device], System]] = {"ours": Ours, "torch": Torch, "marian": Marian}
"""By the name that tables give them; the first is this project."""

_PACKAGES = {"marian": "transformers"}


def available() -> list[str]:
    """The systems that this installation can time."""
    return [name for name in SYSTEMS if name not in _PACKAGES or installed(_PACKAGES[name])]


def build(name: str, shape: Shape, device: torch.device) -> System:
    """The system called `name` for `shape`; errors as `build_system`'s."""
    torch.manual_seed(1)
    return build_system(name, SYSTEMS, _PACKAGES, shape, device)
