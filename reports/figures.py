"""The figures of one study's report, in the order in which they are shown."""

from __future__ import annotations

from reports.figure_cost import cost_picture
from reports.figure_effects import difference_picture
from reports.figure_lengths import lengths_picture
from reports.figure_parts import Picture
from reports.figure_sizes import sizes_picture
from reports.figure_speed import speed_picture
from reports.paper import Paper
from reports.records import Study


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
