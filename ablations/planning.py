"""What a table costs, before anything runs: parameters, FLOPs, memory and hours of every row."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablations import reach
from ablations.scales import Scale, TextStatistics
from ablations.selection import Row, Selection
from ablations.walltime import Jobs
from repro.accounting.capacity import host_memory
from repro.accounting.flops import Lengths, train_flops
from repro.accounting.memory import FRAMEWORK_BYTES, Kind, memory_bytes
from repro.accounting.parameters import parameters
from repro.accounting.peaks import GPUS, PAPER_SUSTAINED_FLOPS, gpu_memory, paper_method_flops, peak_flops
from repro.config import RunConfig

if TYPE_CHECKING:
    from repro.data.prepare import Prepared

CPU_SHARE = 0.5
"""Share of one core's matrix-product rate that a training run is assumed to reach."""
GPU_SHARE = 0.3
"""Share of a GPU's peak that a training run is assumed to reach. It is also what the paper's own figures come to: a
counted 0.98e18 FLOPs for base against 12 h x 8 x 9.5e12 (section 6.1, footnote 5)."""

_MEASURING_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """One epoch of a training text, cut into batches."""

    lengths: Lengths
    batches: int
    estimated: bool
    """Whether this is from the scale's declared statistics and not from a prepared corpus."""

    @staticmethod
    def declared(statistics: TextStatistics, batch_tokens: int) -> Text:
        """From what the scale says of its corpus."""
        n = statistics.pairs
        means = (1, statistics.src, statistics.tgt, statistics.src_src, statistics.src_tgt, statistics.tgt_tgt)
        longer = max(statistics.src, statistics.tgt)
        return Text(
            lengths=Lengths(*(round(n * mean) for mean in means)),
            batches=math.ceil(n * longer / (batch_tokens * statistics.fill)),
            estimated=True,
        )

    @staticmethod
    def prepared(prepared: Prepared, config: RunConfig) -> Text:
        """From a prepared corpus, cut as the run's first epoch is."""
        from repro.data.batches import Sampler

        encoded = prepared.encoded("train")
        src, tgt = encoded.src_lengths + 1, encoded.tgt_lengths + 1
        tokens = config.train.batch_tokens
        sampler = Sampler(src, tgt, batch_tokens=tokens, scale=config.scale, seed=config.seed)
        return Text(lengths=Lengths.of(src, tgt), batches=len(sampler.epoch(0)), estimated=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What hours are reckoned with."""

    name: str
    flops: float | None
    """FLOP/s of matrix products; None where unknown."""
    share: float
    """Share of `flops` that training is assumed to reach."""
    sustained: float | None
    """FLOP/s by the paper's method; None where neither the paper nor a measurement has a figure."""
    basis: str
    """Where `flops` comes from, in words."""
    kind: Kind = "cuda"
    memory: int | None = None
    """Bytes in all; None where unknown."""

    @staticmethod
    def gpu(name: str) -> Device:
        """A GPU by name; its speed is None when it is not known."""
        sustained = PAPER_SUSTAINED_FLOPS.get(name.strip().upper())
        flops = sustained or peak_flops(name)
        if sustained:
            basis = "single-precision rate that the paper assumes"
        elif flops:
            basis = "dense bf16 peak"
        else:
            known = ", ".join([*(gpu.name for gpu in GPUS), *PAPER_SUSTAINED_FLOPS])
            basis = f"no known peak, so no hours; known: {known}"
        return Device(
            name=name,
            flops=flops,
            share=GPU_SHARE,
            sustained=sustained,
            basis=basis,
            kind="cuda",
            memory=gpu_memory(name),
        )

    @staticmethod
    def here(scale: Scale, config: RunConfig) -> Device:
        """What this machine would run `config` on: its GPU where the scale wants one and there is one, else a core."""
        import torch

        if scale.gpu and torch.cuda.is_available():
            memory = torch.cuda.get_device_properties(0).total_memory
            return dataclasses.replace(Device.gpu(torch.cuda.get_device_name()), memory=memory)
        return Device.this_cpu(config)

    @staticmethod
    def this_cpu(config: RunConfig) -> Device:
        """One core of this machine, by a half-second measurement on products of the size that `config` has."""
        rate = _measured_rate(min(config.train.batch_tokens, 1024), config.model.d_model)
        basis = "fp32 matrix products of this width, measured just now on one thread"
        return Device(
            name="one core of this machine",
            flops=rate,
            share=CPU_SHARE,
            sustained=rate,
            basis=basis,
            kind="cpu",
            memory=host_memory(),
        )

    def seconds(self, flops: float | None) -> float | None:
        """Training time of `flops`; None where it cannot be told."""
        return None if flops is None or self.flops is None else flops / (self.flops * self.share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one run of a row costs. None: cannot be told."""

    row: Row
    parameters: int
    steps: int | None
    train_flops: float | None
    memory_bytes: int
    fits: bool | None
    """Whether the device has so much memory."""
    seconds: float | None
    paper_method_flops: float | None


def cost_of(row: Row, vocabulary_size: int, text: Text, device: Device, jobs: Jobs = Jobs()) -> Cost:  # noqa: B008
    """The cost of one run of `row`: its time is that on one device, its memory that of each."""
    config = row.config
    steps, total = planned_work(config, vocabulary_size, text, device)
    seconds = device.seconds(total)
    memory = memory_bytes(config.model, vocabulary_size, jobs.share(config.train), on=device.kind)
    paper = None if seconds is None or device.sustained is None else paper_method_flops(seconds, 1, device.sustained)
    return Cost(
        row=row,
        parameters=parameters(config.model, vocabulary_size),
        steps=steps,
        train_flops=total,
        memory_bytes=memory,
        fits=None if device.memory is None else memory + FRAMEWORK_BYTES <= device.memory,
        seconds=seconds,
        paper_method_flops=paper,
    )


def planned_work(
    config: RunConfig, vocabulary_size: int, text: Text, device: Device
) -> tuple[int | None, float | None]:
    """Updates of one run and their FLOPs, by arithmetic alone; None where the budget is one of seconds and the device's
    speed is not known."""
    flops = train_flops(config.model, vocabulary_size, text.lengths).total / text.batches
    steps = _steps(config, flops, text, device)
    return steps, None if steps is None else steps * flops


def _steps(config: RunConfig, flops: float, text: Text, device: Device) -> int | None:
    """Updates until the budget is spent; `flops` is the mean of one update."""
    budget = config.train.budget
    match config.train.budget_unit:
        case "steps":
            return math.ceil(budget)
        case "tokens":
            return math.ceil(budget * text.batches / text.lengths.tgt)
        case "flops":
            return math.ceil(budget / flops)
        case "seconds":
            return None if device.flops is None else math.ceil(budget * device.flops * device.share / flops)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The cost of a selection with some seeds."""

    selection: Selection
    seeds: int
    costs: tuple[Cost, ...]
    text: Text
    device: Device
    jobs: Jobs
    without_effect: tuple[str, ...] = ()
    """A line for each set of rows that settings do not reach."""

    @property
    def trained(self) -> list[Cost]:
        """The rows that are trained: a row that is another's is not."""
        return [cost for cost in self.costs if cost.row.same_as is None]

    @property
    def notes(self) -> list[str]:
        """What the figures rest on, one sentence each."""
        scale, device = self.selection.scale, self.device
        notes = [f"{self.selection.table} at {scale.name}: {scale.note}"] if scale.note else []
        if self.selection.settings:
            whose = f"profile {self.selection.profile}: " if self.selection.profile else ""
            notes.append(f"{whose}the scale's base is changed by {', '.join(self.selection.settings)}")
        notes.extend(self.without_effect)
        corpus = self.selection.base.data.corpus
        if self.text.estimated:
            known = scale.base.data
            asked = self.selection.base.data
            same = (known.corpus, known.vocabulary_size) == (asked.corpus, asked.vocabulary_size)
            known_text = known.corpus if same else f"{known.corpus} in {known.vocabulary_size} pieces, another text"
            notes.append(f"FLOPs are estimated from declared statistics of {known_text}; prepare {corpus} for a count")
        else:
            notes.append(f"FLOPs are counted on the prepared text of {corpus}")
        if device.flops is None:
            notes.append(f"{device.name}: {device.basis}")
        else:
            notes.append(
                f"hours are of training alone, on {device.name}: {device.flops / 1e9:,.0f} GFLOP/s ({device.basis}), "
                f"of which {device.share:.0%} is assumed to be reached"
            )
        notes.extend(self.jobs.notes(self.selection.base.train))
        if device.sustained is None and device.flops is not None:
            notes.append("the paper's method needs a sustained rate, which it gives for K80, K40, M40 and P100 only")
        large = [cost.row.variant.id for cost in self.costs if cost.fits is False]
        if large and device.memory is not None:
            whose = device.name.removeprefix("one core of ")
            notes.append(
                f"! takes more than the {device.memory / 2**30:.1f} GB of {whose}, so it is not started there "
                f"(set a smaller train.micro_batch_tokens): {', '.join(large)}"
            )
        twins = [f"{cost.row.variant.id} is {cost.row.same_as}" for cost in self.costs if cost.row.same_as]
        if twins:
            notes.append(f"same configuration at this scale, trained once: {', '.join(twins)}")
        return notes

    def document(self) -> dict[str, Any]:
        """The plan as `plan --json` prints it."""
        device, trained, jobs = self.device, self.trained, self.jobs
        hours = _sum(self.seeds, [hours_of(cost.seconds) for cost in trained])
        chunks = _sum(self.seeds, [jobs.chunks(cost.seconds) for cost in trained])
        return {
            "table": self.selection.table,
            "scale": self.selection.scale.name,
            "seeds": self.seeds,
            "set": list(self.selection.settings),
            "estimated": self.text.estimated,
            "device": {
                "name": device.name,
                "flops_per_second": device.flops,
                "assumed_share": device.share,
                "basis": device.basis,
                "memory_bytes": device.memory,
            },
            "gpus_per_run": jobs.gpus,
            "walltime_seconds": jobs.walltime,
            "notes": self.notes,
            "variants": [self._entry(cost) for cost in self.costs],
            "total": {
                "runs": len(trained) * self.seeds,
                "train_flops": _sum(self.seeds, [cost.train_flops for cost in trained]),
                "paper_method_flops": _sum(self.seeds, [cost.paper_method_flops for cost in trained]),
                "hours": hours,
                "gpu_hours": hours if device.kind == "cuda" else None,
                "wall_hours": jobs.wall_seconds(hours),
                "chunks": None if chunks is None else round(chunks),
            },
        }

    def _entry(self, cost: Cost) -> dict[str, Any]:
        variant, hours = cost.row.variant, hours_of(cost.seconds)
        return {
            "id": variant.id,
            "group": variant.group,
            "title": variant.title,
            "changes": dict(cost.row.changes),
            "parameters": cost.parameters,
            "train_flops": cost.train_flops,
            "paper_method_flops": cost.paper_method_flops,
            "steps": cost.steps,
            "memory_bytes": cost.memory_bytes,
            "fits": cost.fits,
            "hours": hours,
            "gpu_hours": hours if self.device.kind == "cuda" else None,
            "wall_hours": self.jobs.wall_seconds(hours),
            "chunks": self.jobs.chunks(cost.seconds),
            "same_as": cost.row.same_as,
        }


def plan(
    selection: Selection,
    seeds: int,
    *,
    prepared: Prepared | None,
    device: Device,
    jobs: Jobs = Jobs(),  # noqa: B008 - frozen
) -> Plan:
    """What `selection` costs with each of `seeds` seeds on `device`; no weights are allocated.

    `jobs` is what each run gets. `prepared` is the corpus if it is at hand; otherwise the scale's declared statistics
    stand in.
    """
    base = selection.base
    statistics, size = selection.scale.statistics, base.data.vocabulary_size
    texts: dict[int, Text] = {}
    costs = []
    for row in selection.rows:
        tokens = row.config.train.batch_tokens
        if tokens not in texts:
            texts[tokens] = Text.prepared(prepared, row.config) if prepared else Text.declared(statistics, tokens)
        costs.append(cost_of(row, size, texts[tokens], device, jobs))
    text = next(iter(texts.values()))
    return Plan(
        selection=selection,
        seeds=seeds,
        costs=tuple(costs),
        text=text,
        device=device,
        jobs=jobs,
        without_effect=tuple(reach.notes(selection)),
    )


def hours_of(seconds: float | None) -> float | None:
    """Seconds in hours, where they are known."""
    return None if seconds is None else seconds / 3600


def _sum(times: int, values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return times * math.fsum(known) if len(known) == len(values) else None


def _measured_rate(rows: int, width: int) -> float:
    """FLOP/s of fp32 products [rows, width] x [width, 4 * width] on one thread, as in a feed-forward layer."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = torch.ones(rows, width), torch.ones(width, 4 * width)
        a @ b  # the first call sets the library up
        best = math.inf
        ends = time.perf_counter() + _MEASURING_SECONDS
        while time.perf_counter() < ends:
            started = time.perf_counter()
            a @ b
            best = min(best, time.perf_counter() - started)
        return 2 * rows * width * 4 * width / best
    finally:
        torch.set_num_threads(threads)
