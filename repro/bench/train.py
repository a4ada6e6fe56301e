"""Training updates of this project and of others on the same batches, in turn, with the ceiling of their products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from repro.accounting.flops import Lengths, train_flops
from repro.accounting.peaks import peak_flops
from repro.bench.clock import Clock
from repro.bench.parts import shares
from repro.bench.products import rate
from repro.bench.shapes import Shape, sampler
from repro.bench.systems import Ours, System, build
from repro.config import ModelConfig
from repro.data.batches import collate
from repro.data.pieces import Batch
from repro.training.device import device_name

Tell = Callable[[str], None]


def measure(
    shape: Shape, names: Sequence[str], device: torch.device, *, rounds: int = 5, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """The document of one shape: what each system of `names` does a second, and what it could do.

    A round is the same batches once through every system, one system after the other; its medians over `rounds` follow
    a round that warms up. On a CPU the seconds are the process's own: other work on the machine shows less.
    `share_of_products` is the speed of a step's useful FLOPs beside that of its linear layers alone; `mfu` is the same
    beside the peak that the GPU's maker prints, None where it is not known.
    """
    clock = Clock(device)
    batches = shape.round(device.type)
    systems = {name: build(name, shape, device) for name in names}
    document = compare(
        shape, shape.model, systems, batches, clock, lambda: rate(shape, batches, clock), rounds=rounds, tell=tell
    )
    ours = systems.get("ours")
    if isinstance(ours, Ours):
        tell(f"{shape.name}: parts")
        step = document["systems"][list(names).index("ours")]["seconds_per_step"]
        document["parts"] = _parts(shape, ours, batches, step)
    return document


def compare(
    shape: Shape,
    model: ModelConfig,
    systems: dict[str, System],
    batches: Sequence[Batch],
    clock: Clock,
    products: Callable[[], float],
    *,
    rounds: int,
    tell: Tell,
) -> dict[str, Any]:
    """The document of `systems` by name, all of which train `model` on `batches`; `products` measures the FLOP/s of
    its linear layers."""
    device = clock.device
    seconds = _seconds(systems, batches, clock, rounds, tell)
    tell(f"{shape.name}: products")
    ceiling = products()
    flops = _flops(shape, model, batches)
    tokens = sum(int(batch.tgt_lengths.sum()) for batch in batches)
    peak = peak_flops(device_name(device)) if device.type == "cuda" else None
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    return {
        "shape": shape.name,
        "device": device_name(device),
        "precision": "bf16" if device.type == "cuda" else "fp32",
        "batches": len(batches),
        "target_tokens": tokens,
        "padding_share": 1.0 - sum(_real(batch) for batch in batches) / sum(_held(batch) for batch in batches),
        "product_flops_per_second": ceiling,
        "peak_flops_per_second": peak,
        "systems": [
            {
                "system": name,
                "target_tokens_per_second": tokens / median,
                "seconds_per_step": median / len(batches),
                "seconds": seconds[name],
                "times_slower": median / first,
                "share_of_products": flops / median / ceiling,
                "mfu": flops / median / peak if peak else None,
            }
            for name, median in medians.items()
        ],
    }


def _seconds(
    systems: dict[str, System], batches: Sequence[Batch], clock: Clock, rounds: int, tell: Tell
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(rounds + 1):
        for name, system in systems.items():
            tell(f"{f'round {turn} of {rounds}' if turn else 'warming up'}: {name}")
            with clock:
                system.steps(batches)
            if turn:
                seconds[name].append(clock.seconds)
    return seconds


def _parts(shape: Shape, ours: Ours, batches: Sequence[Batch], step: float) -> dict[str, float]:
    """Seconds of each part of a step, and of making a batch, which comes on top of it."""
    parts = {part: share * step for part, share in shares(ours, batches).items()}
    text = shape.text()
    indices = sampler(text, shape.config(ours.trainer.device.type)).epoch(0)[: len(batches)]
    started = time.process_time()
    for rows in indices:
        collate(text, rows)
    return parts | {"data": (time.process_time() - started) / len(batches)}


def _flops(shape: Shape, model: ModelConfig, batches: Sequence[Batch]) -> int:
    lengths = sum((Lengths.of(batch.src_lengths, batch.tgt_lengths) for batch in batches), Lengths())
    return train_flops(model, shape.vocabulary_size, lengths).total


def _real(batch: Batch) -> int:
    return int(batch.src_lengths.sum() + batch.tgt_lengths.sum())


def _held(batch: Batch) -> int:
    return batch.src.numel() + batch.tgt_out.numel()
