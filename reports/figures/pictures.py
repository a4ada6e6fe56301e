"""The figures of one study's report, in the order in which they are shown."""

from __future__ import annotations

from reports.figures.cost import cost_picture
from reports.figures.effects import difference_picture
from reports.figures.lengths import lengths_picture
from reports.figures.parts import Picture
from reports.figures.sizes import sizes_picture
from reports.figures.speed import speed_picture
from reports.records.paper import Paper
from reports.records.study import Study


def pictures(study: Study, paper: Paper) -> list[Picture]:
    """All figures of `study` but the learning curves; those it has no data for are left out."""
    found = (
        difference_picture(study, paper),
        sizes_picture(study, paper),
        cost_picture(study),
        lengths_picture(study),
        speed_picture(study),
    )
    return [picture for picture in found if picture is not None]
