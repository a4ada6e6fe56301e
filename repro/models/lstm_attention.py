"""LSTM with additive attention over a bidirectional encoder (Bahdanau et al., 2015).

Attention is asked by the first decoder layer's output at the same step and its answer goes into the next layers and
the maxout layer; `LstmAttentionConfig` says why.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from repro.config.baselines import LstmAttentionConfig
from repro.models.additive import AdditiveAttention
from repro.models.dropout import Dropout, RandomSource
from repro.models.embeddings import Embeddings, Logits
from repro.models.recurrent import (
    BidirectionalLayer,
    Cell,
    LstmLayer,
    RecurrentState,
    repeat_rows,
    reverse_order,
    widening,
)
from repro.models.seq2seq import Output, Seq2Seq
from repro.models.source import Source


class Memory(NamedTuple):
    """The encoded source."""

    source: Source
    """What attention looks at: both directions' states, 2 d_hidden wide."""
    cells: list[Cell]
    """The decoder's first states, a layer each."""


class LstmAttention(Seq2Seq[Memory, RecurrentState]):
    """Bidirectional layers, then decoder layers of which the first asks where to look."""

    def __init__(self, config: LstmAttentionConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config, self.random = config, RandomSource()
        d_embedding, d_hidden, d_value = config.d_embedding, config.d_hidden, 2 * config.d_hidden
        self.embeddings = Embeddings(vocabulary_size, config.d_embedding, shared=config.tied_embeddings)
        self.logits = Logits(vocabulary_size, config.d_out, tied=config.tied_embeddings)
        self.encoder = nn.ModuleList(
            BidirectionalLayer(d_value if i else d_embedding, d_hidden) for i in range(config.encoder_layers)
        )
        self.bridge = nn.Linear(d_hidden, config.decoder_layers * d_hidden)
        self.first = LstmLayer(d_embedding, d_hidden)
        self.attention = AdditiveAttention(d_hidden, d_value, config.d_attention)
        self.later = nn.ModuleList(LstmLayer(d_hidden + d_value, d_hidden) for _ in range(config.decoder_layers - 1))
        self.maxout = nn.Linear(d_hidden + d_value + d_embedding, 2 * config.d_out)
        self.dropout = Dropout(config.dropout, self.random)

    def initialise(self, generator: torch.Generator) -> None:
        """As appendix B.1: recurrent matrices orthogonal, each gate by itself; the attention's two matrices
        N(0, 0.001^2), its vector and all biases zero; everything else N(0, 0.01^2). The deviations are those of the
        paper's width of 1000 and larger where the model is narrower."""
        wider = widening(1000, self.config.d_hidden)
        for name, parameter in self.named_parameters():
            if "bias" in name or name == "attention.score":
                nn.init.zeros_(parameter)
            elif "weight_hh" in name:
                for gate in parameter.chunk(4):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                std = 0.001 if name.startswith("attention.") else 0.01
                nn.init.normal_(parameter, std=std * wider, generator=generator)

    def encode(self, src: Tensor, src_mask: Tensor) -> Memory:
        """The memory of `src` [batch, src_len] with `src_mask` [batch, src_len]."""
        reverse = reverse_order(src_mask)
        x = self.embeddings.source(src)
        for layer in self.encoder:
            x = layer(self.dropout(x), reverse)
        # The backward half at the first piece has read the whole sentence: it starts the decoder (appendix A.2.2).
        first = torch.tanh(self.bridge(x[:, 0, self.config.d_hidden :]))
        cells = [Cell(h, torch.zeros_like(h)) for h in first.chunk(self.config.decoder_layers, -1)]
        return Memory(self.attention.source(x, src_mask), cells)

    def decode(self, tgt_in: Tensor, memory: Memory) -> Tensor:
        """Hidden states [batch, tgt_len, d_out] for `tgt_in` [batch, tgt_len]."""
        embedded = self.dropout(self.embeddings.target(tgt_in))
        x, _ = self.first(embedded, memory.cells[0])
        context = self.attention(x, memory.source)
        for layer, cell in zip(self.later, memory.cells[1:], strict=True):
            x, _ = layer(self.dropout(torch.cat((x, context), -1)), cell)
        return self._leave(x, context, embedded)

    def output(self) -> Output:
        """The layer before the softmax."""
        return self.logits.output(self.embeddings)

    def start(self, memory: Memory, beam: int) -> RecurrentState:
        """The decoder's first states for every hypothesis; the source stays one a sentence."""
        return RecurrentState([repeat_rows(cell, beam) for cell in memory.cells], beam, memory.source)

    def advance(self, pieces: Tensor, state: RecurrentState) -> Tensor:
        """Hidden states [rows, d_out] after one more piece `pieces` [rows] each."""
        embedded = self.dropout(self.embeddings.target(pieces))
        state.cells[0] = self.first.step(embedded, state.cells[0])
        x = state.cells[0].h
        context = self.attention(x.view(-1, state.beam, x.shape[-1]), state.source).flatten(0, 1)
        for i, layer in enumerate(self.later, start=1):
            assert isinstance(layer, LstmLayer)
            state.cells[i] = layer.step(self.dropout(torch.cat((x, context), -1)), state.cells[i])
            x = state.cells[i].h
        return self._leave(x, context, embedded)

    def _leave(self, x: Tensor, context: Tensor, embedded: Tensor) -> Tensor:
        """The deep output: the larger of each pair of linear units over state, context and last piece."""
        one, other = self.maxout(torch.cat((x, context, embedded), -1)).chunk(2, -1)
        dropped: Tensor = self.dropout(torch.maximum(one, other))
        return dropped
