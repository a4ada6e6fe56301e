"""GNMT (Wu et al., 2016, section 3): deep LSTMs with residual connections and attention from the lowest decoder layer.

The context of a step is asked for by the lowest layer's output at that same step and goes to all layers above, as in
the common reproductions; so all steps of a layer run as one fused call. The decoder starts from zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.config.baselines import GnmtConfig
from repro.models.additive import AdditiveAttention
from repro.models.dropout import Dropout, RandomSource
from repro.models.embeddings import Embeddings, Logits
from repro.models.recurrent import (
    BidirectionalLayer,
    LstmLayer,
    RecurrentState,
    initialise_uniform,
    repeat_rows,
    reverse_order,
    widening,
)
from repro.models.seq2seq import Output, Seq2Seq
from repro.models.source import Source

FIRST_RESIDUAL = 2
"""Layers below this one (counted from 0) have no residual connection: they start from the third (section 3.1)."""


class Gnmt(Seq2Seq[Source, RecurrentState]):
    """`n_layers` encoder layers, the first bidirectional, and as many decoder layers. The memory is the top output."""

    def __init__(self, config: GnmtConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config, self.random = config, RandomSource()
        d_hidden = config.d_hidden
        d_out = config.d_embedding if config.tied_embeddings else d_hidden
        self.embeddings = Embeddings(vocabulary_size, config.d_embedding, shared=config.tied_embeddings)
        self.logits = Logits(vocabulary_size, d_out, tied=config.tied_embeddings)
        self.encoder_first = BidirectionalLayer(config.d_embedding, d_hidden)
        self.encoder_later = nn.ModuleList(
            LstmLayer(2 * d_hidden if i == 1 else d_hidden, d_hidden) for i in range(1, config.n_layers)
        )
        self.decoder_first = LstmLayer(config.d_embedding, d_hidden)
        self.attention = AdditiveAttention(d_hidden, d_hidden, config.d_attention)
        self.decoder_later = nn.ModuleList(LstmLayer(2 * d_hidden, d_hidden) for _ in range(1, config.n_layers))
        self.out = None if d_out == d_hidden else nn.Linear(d_hidden, d_out)
        self.dropout = Dropout(config.dropout, self.random)

    def initialise(self, generator: torch.Generator) -> None:
        """U(-0.1, 0.1) everywhere at the published width of 1024, as in the common reproduction, and wider where the
        model is narrower."""
        initialise_uniform(self, 0.1 * widening(1024, self.config.d_hidden), generator)

    def encode(self, src: Tensor, src_mask: Tensor) -> Source:
        """The memory of `src` [batch, src_len] with `src_mask` [batch, src_len]."""
        x = self.encoder_first(self.dropout(self.embeddings.source(src)), reverse_order(src_mask))
        for i, layer in enumerate(self.encoder_later, start=1):
            y, _ = layer(self.dropout(x))
            x = x + y if i >= FIRST_RESIDUAL else y
        return self.attention.source(x, src_mask)

    def decode(self, tgt_in: Tensor, memory: Source) -> Tensor:
        """Hidden states [batch, tgt_len, d_out] for `tgt_in` [batch, tgt_len]."""
        x, _ = self.decoder_first(self.dropout(self.embeddings.target(tgt_in)))
        context = self.attention(x, memory)
        for i, layer in enumerate(self.decoder_later, start=1):
            y, _ = layer(self.dropout(torch.cat((x, context), -1)))
            x = x + y if i >= FIRST_RESIDUAL else y
        return self._leave(x)

    def output(self) -> Output:
        """The layer before the softmax."""
        return self.logits.output(self.embeddings)

    def start(self, memory: Source, beam: int) -> RecurrentState:
        """Zero states for every hypothesis; the source stays one a sentence."""
        zeros = self.decoder_first.zeros(memory.values)
        return RecurrentState([repeat_rows(zeros, beam)] * self.config.n_layers, beam, memory)

    def advance(self, pieces: Tensor, state: RecurrentState) -> Tensor:
        """Hidden states [rows, d_out] after one more piece `pieces` [rows] each."""
        state.cells[0] = self.decoder_first.step(self.dropout(self.embeddings.target(pieces)), state.cells[0])
        x = state.cells[0].h
        context = self.attention(x.view(-1, state.beam, x.shape[-1]), state.source).flatten(0, 1)
        for i, layer in enumerate(self.decoder_later, start=1):
            assert isinstance(layer, LstmLayer)
            state.cells[i] = layer.step(self.dropout(torch.cat((x, context), -1)), state.cells[i])
            y = state.cells[i].h
            x = x + y if i >= FIRST_RESIDUAL else y
        return self._leave(x)

    def _leave(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        return x if self.out is None else self.out(x)
