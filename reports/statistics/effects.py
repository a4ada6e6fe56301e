"""What each row's change did: its difference to base in BLEU, here and in the paper."""

from __future__ import annotations

from dataclasses import dataclass

from reports.records.paper import Paper
from reports.records.study import BASE, Study, Variant
from reports.statistics.measures import Measure, bleu_on_test, difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """One row against base."""

    variant: Variant
    bleu: Measure
    """BLEU on the test side minus base's, paired by seed; one value at least."""
    published: float | None
    """The same in the paper's Table 3; None for a row that it does not have."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return self.bleu.mean or 0.0


def effects(study: Study, paper: Paper) -> list[Effect]:
    """The effect of every row that has one, in the plan's order."""
    base = study.by_variant.get(BASE, [])
    found = [
        Effect(
            variant=variant,
            bleu=difference(study.by_variant[variant.id], base, bleu_on_test),
            published=row.bleu_difference if (row := paper.rows.get(variant.id)) is not None else None,
        )
        for variant in study.variants
        if variant.id != BASE
    ]
    return [effect for effect in found if effect.bleu.values]
