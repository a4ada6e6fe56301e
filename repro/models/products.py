"""A linear layer's three products on a CPU, by the library whose kernels are made for that CPU.

Torch's `mm` is Intel's MKL, which keeps to AVX2 on processors of other makers. The oneDNN that comes with torch makes
its kernels for what the processor has: twice as fast where that is AVX-512 from AMD. Elsewhere MKL stays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

Library = Literal["mkl", "onednn"]


@functools.cache
def library() -> Library:
    """The library for products in single precision. It follows from the processor alone, and so do a run's bits."""
    here = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    capable = here and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "onednn" if capable and "AuthenticAMD" in _processor() else "mkl"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """`x` W^T + b, [rows, out], for `x` [rows, in] and `weight` [out, in]; with `relu` its positive part."""
    if _by_onednn(x):
        y = _onednn(x, weight, None if bias is None else bias.contiguous())  # it would not look at the bias's stride
    else:
        y = torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())
    return y.relu_() if relu else y  # oneDNN's own, taken along with the product, makes zero of what is not a number


def packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """`linear` with this `weight` and `bias` by oneDNN, which lays the weight out at every call; here once for all.

    A single row it takes from the weight as it is, as `linear` does: laid out gives four times the rounding error.
    """
    weight = weight.detach()
    kernel, laid_out = _kernel(), torch.ops.mkldnn._reorder_linear_weight(weight)
    bias = None if bias is None else bias.contiguous()
    return lambda x: kernel(x, laid_out if x.shape[0] > 1 else weight, bias, "none", [], None)


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """What `linear`'s output gradient `grad` [rows, out] says of its input: [rows, in]."""
    if _by_onednn(grad):
        return _onednn(grad, weight.t())
    return torch.mm(grad, weight)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """What `linear`'s output gradient `grad` [rows, out] says of its weight: [out, in]."""
    if not _by_onednn(grad):
        return torch.mm(grad.t(), x)
    # oneDNN copies its first operand into rows: better the narrower one.
    if x.shape[1] < grad.shape[1]:
        return _onednn(x.t(), grad.t()).t().contiguous()
    return _onednn(grad.t(), x.t())


def room(rows: int) -> int:
    """How many rows to compute where `rows` are needed: the same number or, for oneDNN, up to a sixteenth more.

    oneDNN makes a kernel for every size that it meets, which takes longer than a small product; so that batches of any
    size meet kernels that are made already, sizes have five significant bits.
    """
    step = _step(rows)
    return -(-rows // step) * step


def within(rows: int) -> int:
    """The largest number up to `rows` that `room` leaves as it is."""
    return rows - rows % _step(rows)


def _step(rows: int) -> int:
    return 1 if library() == "mkl" or rows < 32 else 1 << (rows.bit_length() - 5)


def _by_onednn(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu and x.numel() > 0 and library() == "onednn"


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y: Tensor = _kernel()(x, weight, bias, "none", [], None)
    return y


@functools.cache
def _kernel() -> Any:
    """oneDNN's linear layer, which not every build of torch has."""
    return torch.ops.mkldnn._linear_pointwise.default


def _processor() -> str:
    """What Linux tells of the processor; nothing elsewhere."""
    told = Path("/proc/cpuinfo")
    return told.read_text(encoding="utf-8", errors="replace") if told.exists() else ""
