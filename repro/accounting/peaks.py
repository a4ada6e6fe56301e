"""What devices can do: peak FLOP/s of known GPUs, and the paper's way of stating a training cost."""

from __future__ import annotations

import re
from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU whose peak is known."""

    name: str
    """How a user names it."""
    device: str
    """A regular expression for its whole name as the driver reports it; parts of a GPU (MIG) match none."""
    bf16: float
    """Dense bfloat16 FLOP/s with accumulation in float32, no sparsity."""
    gigabytes: tuple[int, ...]
    """Memory of one device in the sizes that are sold under this name, smallest first; from the same source."""


GPUS = (
    Gpu("A2", r"A2", 18.0e12, (16,)),  # NVIDIA A2 data sheet
    Gpu("A10", r"A10", 125.0e12, (24,)),  # NVIDIA A10 data sheet
    Gpu("A30", r"A30", 165.0e12, (24,)),  # NVIDIA A30 data sheet
    Gpu("A40", r"A40", 149.7e12, (48,)),  # NVIDIA A40 data sheet
    Gpu("A100", r"A100([ -](SXM4|PCIE))?([ -](40|80)GB)?( PCIe)?", 312.0e12, (40, 80)),  # NVIDIA A100 data sheet
    Gpu("A800", r"A800([ -](SXM4|PCIE))?([ -](40|80)GB)?( PCIe)?", 312.0e12, (40, 80)),  # NVIDIA A800 data sheet
    Gpu("RTX A6000", r"RTX A6000", 154.8e12, (48,)),  # NVIDIA Ampere GA102 whitepaper
    Gpu("RTX 3090", r"(GeForce )?RTX 3090", 71.0e12, (24,)),  # NVIDIA Ampere GA102 whitepaper
    Gpu("L4", r"L4", 121.0e12, (24,)),  # NVIDIA L4 data sheet, half of the figure with sparsity
    Gpu("L40", r"L40", 181.05e12, (48,)),  # NVIDIA L40 data sheet
    Gpu("L40S", r"L40S", 362.05e12, (48,)),  # NVIDIA L40S data sheet
    Gpu("RTX 6000 Ada", r"RTX 6000 Ada( Generation)?", 364.25e12, (48,)),  # NVIDIA Ada professional GPU whitepaper
    Gpu("RTX 4090", r"(GeForce )?RTX 4090", 165.2e12, (24,)),  # NVIDIA Ada GPU architecture whitepaper
    Gpu("RTX 5090", r"(GeForce )?RTX 5090", 209.5e12, (32,)),  # NVIDIA RTX Blackwell GPU architecture whitepaper
    Gpu("H100 SXM", r"H100 (SXM5?|80GB HBM3)", 989.4e12, (80,)),  # NVIDIA H100 architecture whitepaper
    Gpu("H100 PCIe", r"H100 PCIe", 756.0e12, (80,)),  # NVIDIA H100 architecture whitepaper
    Gpu("H100 NVL", r"H100 NVL", 835.5e12, (94,)),  # NVIDIA H100 data sheet, half of the figure with sparsity
    Gpu("GH200", r"GH200( (96|120|144G|480)(GB)?.*)?", 989.4e12, (96, 144)),  # NVIDIA GH200 data sheet
    Gpu("H200", r"H200( SXM)?", 989.4e12, (141,)),  # NVIDIA H200 data sheet, half of the figure with sparsity
    Gpu("H200 NVL", r"H200 NVL", 835.5e12, (141,)),  # NVIDIA H200 data sheet, half of the figure with sparsity
    Gpu("B200", r"B200", 2250.0e12, (180,)),  # NVIDIA DGX B200 data sheet, an eighth of its dense figure
    Gpu("MI250X", r"(AMD )?(Instinct )?MI250X", 191.5e12, (64,)),  # AMD MI250X data sheet, one of its two devices
    Gpu("MI300X", r"(AMD )?(Instinct )?MI300X", 1307.4e12, (192,)),  # AMD MI300X data sheet
)
"""GPUs whose dense bf16 peak their makers print. An ambiguous name ("H100") is not in it."""

PAPER_SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
"""Sustained single-precision FLOP/s that the paper assumes (section 6.1, footnote 5)."""


def peak_flops(gpu: str) -> float | None:
    """Dense bf16 FLOP/s of `gpu`, a user's name for it or the driver's; None where unknown, never another GPU's."""
    known = _known(" ".join(gpu.split()))
    return None if known is None else known.bf16


def _known(name: str) -> Gpu | None:
    for known in GPUS:
        pattern = rf"(NVIDIA )?({known.device}|{re.escape(known.name)})"
        if re.fullmatch(pattern, name, re.IGNORECASE):
            return known
    return None


_PAPER_GIGABYTES = {"K80": 12, "K40": 12, "M40": 12, "P100": 12}
"""Of one device, the smallest sold, from NVIDIA's data sheets; a K80 board has two devices."""


def gpu_memory(gpu: str) -> int | None:
    """Bytes of memory of `gpu`, by the size in its name ("A100 80GB") or the smallest one sold; None where unknown."""
    name = " ".join(gpu.split())
    if name.upper() in _PAPER_GIGABYTES:
        return _PAPER_GIGABYTES[name.upper()] * 2**30
    known = _known(name)
    if known is None:
        return None
    told = {int(size) for size in re.findall(r"(\d+) ?G", name, re.IGNORECASE)}
    return next((size for size in known.gigabytes if size in told), known.gigabytes[0]) * 2**30


def paper_method_flops(seconds: float, devices: int, sustained: float) -> float:
    """Training cost by the paper's method (section 6.1): time x devices x sustained FLOP/s of one device."""
    return seconds * devices * sustained
