"""Learning curves: for every group of rows one small picture by steps and one by training FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from reports.curves import Axis, Curve, curve
from reports.drawing import DASHES, INK, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figures import log_axis
from reports.formats import fixed
from reports.records import BASE, Study
from reports.tables import group_title

METRICS = ("valid/perplexity", "valid/bleu")

_WIDTH, _PANEL_HEIGHT, _LEGEND_LINE = 400, 170, 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The learning curves of one group of rows beside base's."""

    group: str
    number: int
    """Of the group, from 0."""
    axis: Axis
    title: str
    drawing: Drawing


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    variant: str
    curves: tuple[Curve | None, ...]
    """One a metric."""

    @property
    def empty(self) -> bool:
        return not any(self.curves)

    @property
    def finished(self) -> bool:
        return all(found.finished for found in self.curves if found is not None)


def learning_panels(study: Study) -> list[Panel]:
    """Two panels a group, by steps and by FLOPs; none for groups without a curve."""
    panels = []
    with style():
        for axis in ("steps", "flops"):
            lines = {variant.id: _line(study, variant.id, axis) for variant in study.variants}
            top = _highest_perplexity(list(lines.values()))
            groups = list(dict.fromkeys(variant.group for variant in study.variants if variant.id != BASE)) or [BASE]
            for number, group in enumerate(groups):
                members = [lines[v.id] for v in study.variants if v.group == group and v.id != BASE]
                shown = [line for line in members if not line.empty]
                base = lines.get(BASE)
                base = None if base is None or base.empty else base
                if shown or (base is not None and group == BASE):
                    name = f"curves-{axis}-{number}"
                    picture = _draw(base, shown, axis, name, group, top)
                    title = group_title(group)
                    panels.append(Panel(group=group, number=number, axis=axis, title=title, drawing=picture))
    return panels


def _line(study: Study, variant: str, axis: Axis) -> _Line:
    runs = study.by_variant[variant]
    return _Line(variant=variant, curves=tuple(curve(runs, metric, axis) for metric in METRICS))


def _highest_perplexity(lines: Sequence[_Line]) -> float:
    """Where the perplexity axis ends, the same in all panels: twice the median of first values, or a little more."""
    firsts = sorted(float(found.mean[0]) for line in lines if (found := line.curves[0]) is not None)
    return max(2.0 * firsts[len(firsts) // 2], 4.0) if firsts else 4.0


def _draw(base: _Line | None, lines: Sequence[_Line], axis: Axis, name: str, group: str, top: float) -> Drawing:
    entries = len(lines) + (base is not None)
    legend = (entries + 1) // 2 * _LEGEND_LINE + 10
    height = legend + 2 * _PANEL_HEIGHT + 22 + 46
    figure, axes = sheet(_WIDTH, height, Margins(left=50, right=14, top=legend, bottom=46), rows=2, gap=22)
    if base is not None:
        _draw_line(axes, base, INK, "-", 4.0, faint=True)  # broad and beneath: rows that cover it stay visible
    for number, line in enumerate(lines):
        colour, dash = SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
        _draw_line(axes, line, colour, dash, 1.7)
    _finish(axes, axis, top)
    axes[0].legend(
        loc="lower left", bbox_to_anchor=(-0.13, 1.02), ncols=2, borderaxespad=0.0, handlelength=1.9, columnspacing=1.2
    )
    by = "steps" if axis == "steps" else "training FLOPs"
    return drawing(figure, name, f"Validation perplexity and BLEU by {by}: base and group {group}")


def _draw_line(axes: Sequence[Axes], line: _Line, colour: str, dash: Any, width: float, *, faint: bool = False) -> None:
    for number, (panel, found) in enumerate(zip(axes, line.curves, strict=True)):
        if found is None:
            continue
        name = line.variant if line.finished else f"{line.variant} (unfinished)"
        label = printable(name) if number == 0 or line.curves[0] is None else None
        marker = "." if len(found.x) == 1 else None
        alpha = 0.35 if faint else 1.0 if line.finished else 0.65
        look: dict[str, Any] = {
            "color": colour,
            "linestyle": dash,
            "linewidth": width,
            "marker": marker,
            "alpha": alpha,
        }
        panel.plot(found.x, found.mean, label=label, **look)
        if found.n > 1 and not faint:
            panel.fill_between(found.x, found.lowest, found.highest, color=colour, alpha=0.16, linewidth=0)


def _finish(axes: Sequence[Axes], axis: Axis, top: float) -> None:
    perplexity, bleu = axes
    perplexity.set_yscale("log")
    perplexity.set_ylim(1.0, top)
    perplexity.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000]))
    perplexity.yaxis.set_minor_locator(NullLocator())
    perplexity.yaxis.set_major_formatter(FuncFormatter(lambda value, _: fixed(value, 0)))
    perplexity.yaxis.set_minor_formatter(NullFormatter())
    perplexity.set_ylabel("perplexity, valid")
    perplexity.tick_params(labelbottom=False)
    bleu.set_ylim(bottom=0.0)
    bleu.yaxis.set_major_locator(MaxNLocator(5))
    bleu.set_ylabel("BLEU, valid")
    if axis == "flops":
        log_axis(bleu)
        bleu.set_xlabel("training FLOPs (our count)")
    else:
        bleu.set_xlim(left=0.0)
        bleu.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        bleu.xaxis.set_major_formatter(FuncFormatter(lambda value, _: fixed(value, 0)))
        bleu.set_xlabel("training steps")
