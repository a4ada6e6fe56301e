"""The baselines as a user would make them of torch's own modules, parameter for parameter in the same order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from repro.config.baselines import BaselineConfig, ConvS2SConfig, GnmtConfig, LstmAttentionConfig, LstmConfig
from repro.data.pieces import PAD, Batch
from repro.models.gnmt import FIRST_RESIDUAL
from repro.models.recurrent import reverse_order

ROOT_HALF = math.sqrt(0.5)

State = tuple[Tensor, Tensor]


class TorchBaseline(nn.Module):
    """What all four have: one matrix for source, target and softmax, as the small baselines do."""

    def __init__(self, config: BaselineConfig, vocabulary_size: int) -> None:
        super().__init__()
        assert config.tied_embeddings, "the small baselines are tied"
        self.embedding = nn.Embedding(vocabulary_size, config.d_embedding)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        self.out: nn.Linear | None = None

    def forward(self, batch: Batch) -> Tensor:
        """Logits [batch, tgt_len, vocabulary]."""
        hidden = self.dropout(self.states(batch))
        hidden = hidden if self.out is None else self.out(hidden)
        return functional.linear(hidden, self.embedding.weight, self.bias)

    def states(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, d_embedding], or as wide as `out` reads; before the last dropout."""
        raise NotImplementedError


class _Recurrent(TorchBaseline):
    """What the LSTMs have: an encoder over packed sentences or, for its speed alone, over their padding too."""

    def __init__(self, config: BaselineConfig, vocabulary_size: int, packed: bool) -> None:
        super().__init__(config, vocabulary_size)
        self.packed = packed

    def read(self, lstm: nn.LSTM, x: Tensor, batch: Batch) -> tuple[Tensor, State]:
        """Outputs [batch, src_len, directions * d_hidden] and final states, of source vectors [batch, src_len, d]."""
        if not self.packed:
            outputs, state = lstm(x)
            return outputs, state
        packed, state = lstm(pack_padded_sequence(x, batch.src_lengths, batch_first=True, enforce_sorted=False))
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return outputs, state


class TorchLstm(_Recurrent):
    """`repro.models.lstm.Lstm`: two stacks, each one call."""

    def __init__(self, config: LstmConfig, vocabulary_size: int, packed: bool) -> None:
        super().__init__(config, vocabulary_size, packed)
        sizes = config.d_embedding, config.d_hidden, config.n_layers
        self.encoder = nn.LSTM(*sizes, batch_first=True, dropout=config.dropout)
        self.decoder = nn.LSTM(*sizes, batch_first=True, dropout=config.dropout)
        self.reverse = config.reverse_source
        if config.d_embedding != config.d_hidden:
            self.out = nn.Linear(config.d_hidden, config.d_embedding)

    def states(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, d_hidden], before the last dropout."""
        src = batch.src.gather(1, reverse_order(batch.src_mask)) if self.reverse else batch.src
        _, state = self.read(self.encoder, self.dropout(self.embedding(src)), batch)
        hidden: Tensor = self.decoder(self.dropout(self.embedding(batch.tgt_in)), state)[0]
        return hidden


class _Additive(nn.Module):
    """score^T tanh(W_q s + W_k h), its softmax and the mean of the values."""

    def __init__(self, d_query: int, d_value: int, d_attention: int) -> None:
        super().__init__()
        self.score = nn.Linear(d_attention, 1, bias=False)
        self.query = nn.Linear(d_query, d_attention, bias=False)
        self.key = nn.Linear(d_value, d_attention, bias=False)

    def forward(self, queries: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        """Contexts [batch, tgt_len, d_value]."""
        hidden = torch.tanh(self.query(queries)[:, :, None] + self.key(values)[:, None])
        scores: Tensor = self.score(hidden).squeeze(-1)
        return scores.masked_fill(padding[:, None], -math.inf).softmax(-1) @ values


class TorchLstmAttention(_Recurrent):
    """`repro.models.lstm_attention.LstmAttention`."""

    def __init__(self, config: LstmAttentionConfig, vocabulary_size: int, packed: bool) -> None:
        super().__init__(config, vocabulary_size, packed)
        e, h, n = config.d_embedding, config.d_hidden, config.decoder_layers
        self.encoder = nn.LSTM(
            e, h, config.encoder_layers, batch_first=True, bidirectional=True, dropout=self._between(config)
        )
        self.bridge = nn.Linear(h, n * h)
        self.first = nn.LSTM(e, h, batch_first=True)
        self.attention = _Additive(h, 2 * h, config.d_attention)
        self.later = nn.ModuleList(nn.LSTM(3 * h, h, batch_first=True) for _ in range(n - 1))
        self.maxout = nn.Linear(3 * h + e, 2 * config.d_out)

    @staticmethod
    def _between(config: LstmAttentionConfig) -> float:
        return config.dropout if config.encoder_layers > 1 else 0.0

    def states(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, d_embedding], before the last dropout."""
        encoded, _ = self.read(self.encoder, self.dropout(self.embedding(batch.src)), batch)
        h = self.first.hidden_size
        starts = torch.tanh(self.bridge(encoded[:, 0, h:])).chunk(1 + len(self.later), -1)
        embedded = self.dropout(self.embedding(batch.tgt_in))
        states = [(start[None].contiguous(), torch.zeros_like(start)[None]) for start in starts]
        x, _ = self.first(embedded, states[0])
        context = self.attention(x, encoded, batch.src == PAD)
        for lstm, state in zip(self.later, states[1:], strict=True):
            x, _ = lstm(self.dropout(torch.cat((x, context), -1)), state)
        one, other = self.maxout(torch.cat((x, context, embedded), -1)).chunk(2, -1)
        return torch.maximum(one, other)


class TorchGnmt(_Recurrent):
    """`repro.models.gnmt.Gnmt`: residual sums part the layers, so each is a call."""

    def __init__(self, config: GnmtConfig, vocabulary_size: int, packed: bool) -> None:
        super().__init__(config, vocabulary_size, packed)
        e, h, later = config.d_embedding, config.d_hidden, range(1, config.n_layers)
        self.encoder_first = nn.LSTM(e, h, batch_first=True, bidirectional=True)
        self.encoder_later = nn.ModuleList(nn.LSTM(2 * h if i == 1 else h, h, batch_first=True) for i in later)
        self.decoder_first = nn.LSTM(e, h, batch_first=True)
        self.attention = _Additive(h, h, config.d_attention)
        self.decoder_later = nn.ModuleList(nn.LSTM(2 * h, h, batch_first=True) for _ in later)
        if e != h:
            self.out = nn.Linear(h, e)

    def states(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, d_hidden], before the last dropout."""
        x: Tensor = self.read(self.encoder_first, self.dropout(self.embedding(batch.src)), batch)[0]
        for i, lstm in enumerate(self.encoder_later, start=1):
            y, _ = lstm(self.dropout(x))
            x = x + y if i >= FIRST_RESIDUAL else y
        memory, padding = x, batch.src == PAD
        x = self.decoder_first(self.dropout(self.embedding(batch.tgt_in)))[0]
        context = self.attention(x, memory, padding)
        for i, lstm in enumerate(self.decoder_later, start=1):
            y, _ = lstm(self.dropout(torch.cat((x, context), -1)))
            x = x + y if i >= FIRST_RESIDUAL else y
        return x


class _Convolution(nn.Module):
    """torch's convolution with weight normalisation, in the layout that it wants: [batch, width, length]."""

    def __init__(self, d_in: int, width: int, kernel: int, before: int) -> None:
        super().__init__()
        self.before, self.after = before, kernel - 1 - before
        self.gated = weight_norm(nn.Conv1d(d_in, 2 * width, kernel), dim=0)
        self.residual = None if d_in == width else weight_norm(nn.Conv1d(d_in, width, 1), dim=0)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, width, length] of `x` [batch, d_in, length]."""
        return functional.glu(self.gated(functional.pad(x, (self.before, self.after))), 1)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The residual sum of the layer's input `x` and what it made of it, `y`."""
        return (y + (x if self.residual is None else self.residual(x))) * ROOT_HALF


class _Attending(_Convolution):
    """A convolution over past positions, with the maps to queries and from contexts."""

    def __init__(self, d_in: int, width: int, kernel: int, d_embedding: int) -> None:
        super().__init__(d_in, width, kernel, kernel - 1)
        self.query = weight_norm(nn.Linear(width, d_embedding), dim=0)
        self.context = weight_norm(nn.Linear(d_embedding, width), dim=0)


class TorchConvS2S(TorchBaseline):
    """`repro.models.convs2s.ConvS2S`, with torch's fused attention."""

    def __init__(self, config: ConvS2SConfig, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size)
        e = config.d_embedding
        self.src_positions = nn.Embedding(config.max_positions, e)
        self.tgt_positions = nn.Embedding(config.max_positions, e)
        self.encoder_in = weight_norm(nn.Linear(e, config.encoder[0][0]), dim=0)
        widths = [config.encoder[0][0], *(width for width, _ in config.encoder)]
        self.encoder = nn.ModuleList(
            _Convolution(d_in, width, kernel, kernel // 2)
            for d_in, (width, kernel) in zip(widths, config.encoder, strict=False)
        )
        self.encoder_out = weight_norm(nn.Linear(widths[-1], e), dim=0)
        self.decoder_in = weight_norm(nn.Linear(e, config.decoder[0][0]), dim=0)
        widths = [config.decoder[0][0], *(width for width, _ in config.decoder)]
        self.decoder = nn.ModuleList(
            _Attending(d_in, width, kernel, e) for d_in, (width, kernel) in zip(widths, config.decoder, strict=False)
        )
        self.decoder_out = weight_norm(nn.Linear(widths[-1], config.d_out), dim=0)

    def _embed(self, pieces: Tensor, positions: nn.Embedding) -> Tensor:
        dropped: Tensor = self.dropout(self.embedding(pieces) + positions.weight[: pieces.shape[1]])
        return dropped

    def states(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, d_embedding], before the last dropout."""
        mask = batch.src_mask
        real = mask[:, None].to(self.bias.dtype)
        embedded = self._embed(batch.src, self.src_positions)
        x = self.encoder_in(embedded).transpose(1, 2)
        for layer in self.encoder:
            assert isinstance(layer, _Convolution)
            x = layer.add(x, layer(self.dropout(x) * real))
        keys = self.encoder_out(x.transpose(1, 2))
        values = (keys + embedded) * (ROOT_HALF * real.sum(2, keepdim=True).sqrt())
        embedded = self._embed(batch.tgt_in, self.tgt_positions)
        x = self.decoder_in(embedded).transpose(1, 2)
        for layer in self.decoder:
            assert isinstance(layer, _Attending)
            y = layer(self.dropout(x))
            queries = (layer.query(y.transpose(1, 2)) + embedded) * ROOT_HALF
            context = functional.scaled_dot_product_attention(queries, keys, values, mask[:, None], scale=1.0)
            x = layer.add(x, (layer.context(context).transpose(1, 2) + y) * ROOT_HALF)
        hidden: Tensor = self.decoder_out(x.transpose(1, 2))
        return hidden
