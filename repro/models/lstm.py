"""Encoder and decoder LSTM without attention (Sutskever et al., 2014): everything passes through one state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.config.baselines import LstmConfig
from repro.models.dropout import Dropout, RandomSource
from repro.models.embeddings import Embeddings, Logits
from repro.models.recurrent import (
    Cell,
    LstmLayer,
    RecurrentState,
    falling_lengths,
    initialise_uniform,
    repeat_rows,
    reverse_order,
    take,
    widening,
)
from repro.models.seq2seq import Output, Seq2Seq


class Lstm(Seq2Seq[list[Cell], RecurrentState]):
    """The encoder's final states, layer by layer, start the decoder. The memory is those states."""

    def __init__(self, config: LstmConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config, self.random = config, RandomSource()
        d_out = config.d_embedding if config.tied_embeddings else config.d_hidden
        widths = [config.d_embedding] + [config.d_hidden] * (config.n_layers - 1)
        self.embeddings = Embeddings(vocabulary_size, config.d_embedding, shared=config.tied_embeddings)
        self.logits = Logits(vocabulary_size, d_out, tied=config.tied_embeddings)
        self.encoder = nn.ModuleList(LstmLayer(width, config.d_hidden) for width in widths)
        self.decoder = nn.ModuleList(LstmLayer(width, config.d_hidden) for width in widths)
        self.out = None if d_out == config.d_hidden else nn.Linear(config.d_hidden, d_out)
        self.dropout = Dropout(config.dropout, self.random)

    def initialise(self, generator: torch.Generator) -> None:
        """U(-0.08, 0.08) everywhere at the paper's width of 1000 (section 3.4), wider where the model is narrower."""
        initialise_uniform(self, 0.08 * widening(1000, self.config.d_hidden), generator)

    def encode(self, src: Tensor, src_mask: Tensor) -> list[Cell]:
        """Each layer's state after the last piece read, rows in the batch's order."""
        if self.config.reverse_source:
            src = take(src, reverse_order(src_mask))
        order, stretches = falling_lengths(src_mask)
        x = self.embeddings.source(src.index_select(0, order))
        back = order.argsort()
        cells = []
        for layer in self.encoder:
            assert isinstance(layer, LstmLayer)
            x, cell = layer.to_ends(self.dropout(x), stretches)
            cells.append(cell.rows(back))
        return cells

    def decode(self, tgt_in: Tensor, memory: list[Cell]) -> Tensor:
        """Hidden states [batch, tgt_len, d_out] for `tgt_in` [batch, tgt_len]."""
        x = self.embeddings.target(tgt_in)
        for layer, cell in zip(self.decoder, memory, strict=True):
            x, _ = layer(self.dropout(x), cell)
        return self._leave(x)

    def output(self) -> Output:
        """The layer before the softmax."""
        return self.logits.output(self.embeddings)

    def start(self, memory: list[Cell], beam: int) -> RecurrentState:
        """The encoder's final states, for every hypothesis."""
        return RecurrentState([repeat_rows(cell, beam) for cell in memory], beam)

    def advance(self, pieces: Tensor, state: RecurrentState) -> Tensor:
        """Hidden states [rows, d_out] after one more piece `pieces` [rows] each."""
        x = self.embeddings.target(pieces)
        for i, layer in enumerate(self.decoder):
            assert isinstance(layer, LstmLayer)
            state.cells[i] = layer.step(self.dropout(x), state.cells[i])
            x = state.cells[i].h
        return self._leave(x)

    def _leave(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        return x if self.out is None else self.out(x)
