"""The baselines' tables of piece vectors and the layer before the softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models.seq2seq import Output


class Embeddings(nn.Module):
    """A vector for each source and each target piece: two tables, or one shared by both sides."""

    def __init__(self, vocabulary_size: int, d_embedding: int, shared: bool) -> None:
        super().__init__()
        self.target_table = nn.Parameter(torch.empty(vocabulary_size, d_embedding))
        self.source_table = None if shared else nn.Parameter(torch.empty(vocabulary_size, d_embedding))

    def source(self, pieces: Tensor) -> Tensor:
        """[..., d_embedding] of source pieces."""
        return functional.embedding(pieces, self.target_table if self.source_table is None else self.source_table)

    def target(self, pieces: Tensor) -> Tensor:
        """[..., d_embedding] of target pieces."""
        return functional.embedding(pieces, self.target_table)


class Logits(nn.Module):
    """The layer before the softmax: a bias, and a matrix of its own or, tied, the table of the target's vectors."""

    def __init__(self, vocabulary_size: int, d_out: int, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary_size, d_out))
        self.bias = nn.Parameter(torch.empty(vocabulary_size))

    def output(self, embeddings: Embeddings) -> Output:
        """Weight [vocabulary, d_out] and bias [vocabulary]."""
        return Output(embeddings.target_table if self.weight is None else self.weight, self.bias)
