"""Every probe: what rows it needs trained, what it measures on each, and what it measures without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ablations.tables import unknown

if TYPE_CHECKING:
    from repro.runs.trained import Trained

ALL = "all"
TABLE = "scaling+positions+mask+baselines"
"""What the rows of all probes are taken from: one study holds them, each trained once."""

LONGEST = {"smoke": 10, "multi30k-cpu": 12, "multi30k": 12, "iwslt14": 24, "paper": 32}
"""Pieces of the longest sentence that `extrapolation` trains on, by scale; the test side has many of up to four times
as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One experiment on a mechanism."""

    name: str
    title: str
    module: str
    """Of `repro.probes`; imported when it is needed, as it imports torch."""
    rows: tuple[str, ...] = ()
    """Rows that it needs trained."""
    on_row: str = ""
    """The module's function of (model, prepared corpus, configuration), for each of `rows`."""
    alone: str = ""
    """The module's function of a seed, for what needs no trained model."""
    table: str = TABLE
    shortened: bool = False
    """Whether it trains on short sentences only, and so in a study of its own."""

    def measured(self, trained: Trained) -> dict[str, Any]:
        """What it measures on a trained row."""
        found: dict[str, Any] = self._function(self.on_row)(trained.model, trained.prepared, trained.config)
        return found

    def measured_alone(self, seed: int) -> dict[str, Any] | None:
        """What it measures without any."""
        return self._function(self.alone)(seed) if self.alone else None

    def figures(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The numbers that claims are about, from the results of all seeds."""
        found: dict[str, Any] = self._function("figures")(results)
        return found

    def settings(self, scale: str) -> tuple[str, ...]:
        """What its study sets of the scale's base."""
        return (f"data.max_pieces={LONGEST[scale]}",) if self.shortened else ()

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(f"repro.probes.{self.module}"), name)
        return function


_BASELINES = ("baseline.lstm", "baseline.lstm-attention", "baseline.gnmt", "baseline.convs2s")

PROBES = {
    probe.name: probe
    for probe in (
        Probe(
            name="worked-example",
            title="Attention on three tokens, step by step",
            module="worked",
            alone="measured",
        ),
        Probe(
            name="softmax-saturation",
            title="Scaled scores keep the softmax out of saturation",
            module="saturation",
            alone="measured",
            rows=(
                "base",
                "scaling.off",
                "scaling.dk-quarter",
                "scaling.dk-quarter-off",
                "scaling.dk-4x",
                "scaling.dk-4x-off",
            ),
            on_row="inside",
        ),
        Probe(
            name="layers",
            title="What a layer costs as sentences and widths grow",
            module="layers",
            alone="measured",
        ),
        Probe(
            name="long-range",
            title="What is kept of words that stand far apart",
            module="longrange",
            rows=("base", *_BASELINES),
            on_row="long_range",
        ),
        Probe(
            name="order",
            title="Without positions, attention is blind to order",
            module="order",
            rows=("base", "positions.none"),
            on_row="order",
        ),
        Probe(
            name="extrapolation",
            title="Sentences longer than any in training",
            module="extrapolation",
            rows=("base", "positions.learned", "positions.none"),
            on_row="extrapolation",
            table="positions",
            shortened=True,
        ),
        Probe(
            name="attention-maps",
            title="Where the models look",
            module="maps",
            rows=("base", *_BASELINES[1:]),
            on_row="attention_maps",
        ),
        Probe(
            name="mask",
            title="Training without the causal mask",
            module="unmasked",
            rows=("base", "mask.off"),
            on_row="mask",
        ),
    )
}
"""Every probe by name, in the order in which they are told."""


def chosen(names: Iterable[str]) -> list[Probe]:
    """The probes called `names` in the catalogue's order; "all" stands for every one. Raises UsageError."""
    wanted = set(names)
    for name in sorted(wanted - {ALL}):
        if name not in PROBES:
            raise unknown("probe", name, [*PROBES, ALL])
    return [probe for probe in PROBES.values() if ALL in wanted or probe.name in wanted]
