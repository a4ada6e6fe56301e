"""What a baseline's attention looks at, and the weighted mean it brings back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Source:
    """The encoded source of `n` sentences, computed once a sentence."""

    keys: Tensor
    """[n, src_len, d_key], what scores are computed with."""
    values: Tensor
    """[n, src_len, d_value], what is averaged."""
    mask: Tensor
    """[n, src_len] bool, True on real pieces."""

    def keep(self, sentences: Tensor) -> Source:
        """The source of the sentences `sentences` [n] (indices into the current ones)."""
        current = self.keys.shape[0]
        if sentences.numel() == current and torch.equal(sentences, torch.arange(current, device=sentences.device)):
            return self
        return Source(self.keys[sentences], self.values[sentences], self.mask[sentences])


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """The softmax of `scores` [n, queries, src_len] over real pieces, `mask` [n, src_len]; 0 on padding."""
    # The lowest finite number, not -inf: a row that is all padding must not give NaN.
    return scores.float().masked_fill(~mask[:, None, :], torch.finfo(torch.float32).min).softmax(-1)


def attend(scores: Tensor, source: Source) -> Tensor:
    """Contexts [n, queries, d_value]: the source's values, averaged by `scores` [n, queries, src_len]."""
    return attention_weights(scores, source.mask).to(source.values.dtype) @ source.values
