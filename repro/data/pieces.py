"""The four special pieces, the same in every vocabulary, and the batch that models see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # text and vocabulary use the four numbers without waiting seconds for torch
    import torch
    from torch import Tensor

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""Padding, unknown, start mark and end mark."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentence pairs padded to one length a side. Counts leave padding out and the end mark in."""

    src: Tensor
    """[batch, src_len] int64, each row ending in EOS, then PAD."""
    tgt_in: Tensor
    """[batch, tgt_len] int64, BOS and the pieces."""
    tgt_out: Tensor
    """[batch, tgt_len] int64, the pieces and EOS: what is to be predicted at each position of `tgt_in`."""
    src_lengths: Tensor
    """[batch] int64."""
    tgt_lengths: Tensor
    """[batch] int64."""

    def to(self, device: torch.device) -> Batch:
        """The batch with its pieces on `device`; lengths stay on the CPU, where they are counted."""
        if self.src.device == device:
            return self
        src, tgt_in, tgt_out = (part.to(device, non_blocking=True) for part in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_lengths, self.tgt_lengths)

    @property
    def src_mask(self) -> Tensor:
        """[batch, src_len] bool, True on real pieces."""
        return self.src != PAD
