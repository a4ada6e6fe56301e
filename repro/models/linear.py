"""The linear layer whose products a search and an evaluation take from the faster library."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models import products

WORTH = 2**20
"""Multiplications under which calling oneDNN costs more than it saves."""


class Linear(nn.Linear):
    """`torch.nn.Linear`, by `linear`."""

    def forward(self, x: Tensor, *, relu: bool = False) -> Tensor:
        """[..., d_out] of `x` [..., d_in]; with `relu` its positive part."""
        return linear(x, self.weight, self.bias, relu=relu)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """`x` [..., d_in] times `weight` [d_out, d_in] transposed, plus `bias` [d_out]; with `relu` its positive part.

    In inference mode, where nobody asks for gradients, large products in single precision on a CPU are
    `products.linear`'s.
    """
    inference = torch.is_inference_mode_enabled() and x.device.type == "cpu"
    single = x.dtype == weight.dtype == torch.float32
    if inference and single and products.library() == "onednn" and x.numel() * weight.shape[0] >= WORTH:
        return products.linear(x, weight, bias, relu=relu)
    y = functional.linear(x, weight, bias)
    return torch.relu(y) if relu else y
