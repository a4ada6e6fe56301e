"""How far a study can be trusted, in plain words: seeds, scale, hardware, unequal budgets and what went wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from reports.claims.verdicts import FLOOR, gap_in_scale
from reports.formats import counted, fixed, listed
from reports.records.machines import machine
from reports.records.paper import Paper
from reports.records.study import BASE, Study, Variant, at
from reports.statistics.measures import bleu_on_test, measure
from reports.statistics.significance import what_seeds_allow
from reports.tables.table3 import changes_budget

_RATE = "train.learning_rate_factor"
_UNEVEN = 1.3
"""Between the seconds of runs of equal cost: above it they were not alone on the machine."""
_NONE = ((1.0, ""), (1.0, ""))


def trust(study: Study, paper: Paper) -> list[str]:
    """Sentences on what stands behind the numbers of `study`, the gravest first."""
    points = []
    base = measure(study.by_variant.get(BASE, []), bleu_on_test)
    if base.mean is not None and base.mean < FLOOR:
        points.append(
            f"Base itself hardly translates ({fixed(base.mean, 1)} BLEU): differences between rows say little."
        )
    points += [_seeds(study), _scale(study, paper), _hardware(study), _seconds(study)]
    points.append(tuning(study.variants, study.planned_base))
    if any(changes_budget(variant) for variant in study.variants):
        points.append("Rows with another budget than base are not compared at equal cost; the table marks them.")
    if len(study.finished) < len(study.trained):
        points.append("Rows with fewer finished seeds than planned may move when the rest is there; they are marked.")
    return [point for point in [*points, *_mishaps(study)] if point]


def _seeds(study: Study) -> str:
    if not study.finished:
        return ""
    if len(study.seeds) == 1:
        return f"Seeds: one a row, so a difference may be no more than the luck of that seed. {what_seeds_allow(1)}"
    told = f"{len(study.seeds)} a row."
    if len(study.seeds_of_rows) > 1:
        fewest = min(map(len, study.seeds_of_rows))
        luck = "; where it is one, a difference may be no more than its luck" if fewest == 1 else ""
        told = f"{fewest} to {len(study.seeds)} a row{luck}."
    text = f"Seeds: {told} {what_seeds_allow(len(study.seeds))}"
    spread = measure(study.by_variant.get(BASE, []), bleu_on_test)
    if spread.n > 1:
        apart = fixed(spread.spread, 1)
        text += f" The seeds of base alone lie {apart} BLEU apart; a difference of that size means little."
    return text


def _scale(study: Study, paper: Paper) -> str:
    gap = gap_in_scale(study, paper)
    return (
        f"Scale: {gap} Levels of BLEU and perplexity do not compare with the paper's ({paper.test}, BLEU "
        f"{paper.bleu_protocol}; here sacreBLEU 13a and another vocabulary); only differences to base may be set side "
        "by side, and what holds at this scale need not hold at the paper's."
    )


def tuning(variants: Sequence[Variant], base: Mapping[str, Any]) -> str:
    """Whose learning rates were chosen for them, beside that of `base` by dotted key; empty where all have base's."""
    own = {variant.id: variant.changes[_RATE] for variant in variants if _RATE in variant.changes}
    if not own:
        return ""
    told = listed([f"{name} ({value:g})" for name, value in own.items()])
    return (
        f"Learning rates: some rows have a factor of the schedule of their own, base's is {base.get(_RATE, 1.0):g}: "
        f"{told}. Whether base has the one that suits it best is not known from this study, so such a row may be "
        "nearer its best than base is."
    )


def _hardware(study: Study) -> str:
    machines = Counter(machine(run) for run in study.finished)
    if not machines:
        return ""
    told = listed([f"{name} ({counted(number, 'run')})" for name, number in machines.most_common(4)])
    if len(machines) > 4:
        told += f" and {len(machines) - 4} more"
    text = f"Hardware: {told}."
    if len(machines) > 1:
        text += " Seconds and speeds of different machines do not compare, and a mean over several (¶) says little."
    return text


def _seconds(study: Study) -> str:
    """Whether runs that should take equally long did: same machine, family, heads and, within 1 %, FLOPs."""
    alike: dict[tuple[object, ...], list[tuple[float, str]]] = {}
    for run in study.finished:
        flops, seconds = run.number("train_flops"), run.number("train_seconds")
        if flops and seconds:
            model = run.settings.get("model.family"), run.settings.get("model.n_heads")
            alike.setdefault((machine(run), *model, round(100 * math.log(flops))), []).append((seconds, run.id))
    (most, slow), (least, quick) = max(
        ((max(runs), min(runs)) for runs in alike.values()), key=lambda ends: ends[0][0] / ends[1][0], default=_NONE
    )
    if most / least < _UNEVEN:
        return ""
    return (
        f"Seconds: {slow} took {fixed(most / least, 1)} times as long as {quick}, at equal FLOPs on one machine, which "
        "probably did other work at times. Compare FLOPs and steps; seconds and speeds here say little."
    )


def _mishaps(study: Study) -> list[str]:
    points = []
    if dirty := [run.id for run in study.finished if at(run.environment, "code", "dirty")]:
        points.append(
            f"Code: {counted(len(dirty), 'run')} of {len(study.finished)} came from code with uncommitted changes."
        )
    if skipped := [run.id for run in study.finished if run.number("skipped_steps")]:
        points.append(f"{counted(len(skipped), 'run')} skipped updates with a non-finite loss; the details say which.")
    if any(run.value("test", "warnings") for run in study.finished):
        points.append(
            "Some translations still hold segmentation marks, so their BLEU is too low; the details say which."
        )
    return points
