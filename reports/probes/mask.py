"""The page on the causal mask."""

from __future__ import annotations

from reports.claims.mechanisms import judged
from reports.figures.parts import Picture
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, compared, decimals, number
from reports.probes.records import Probed

_PERPLEXITIES = {"as trained": "perplexity", "with the mask": "perplexity_masked"}


def words(probed: Probed) -> list[str]:
    """What was found."""
    found = []
    for row in probed.rows:
        trained, masked, bleu = (_mean(probed, row, key) for key in ("perplexity", "perplexity_masked", "bleu"))
        how = "with" if probed.first(row)["causal_mask"] else "without"
        found.append(
            f"{row}, trained {how} the mask: validation perplexity {number(trained)} with the target read as in "
            "training, "
            f"{number(masked)} where no position sees a later piece; {decimals(bleu, 1)} BLEU in translation."
        )
    if {"base", "mask.off"} <= set(probed.rows):
        values = [[_mean(probed, row, key) or 0.0 for row in ("mask.off", "base")] for key in ("perplexity", "bleu")]
        stands = [compared(*pair) for pair in values]
        told = f"Without the mask perplexity as trained is {stands[0]} base's and BLEU {stands[1]} base's"
        held = all(claim.state == "reproduced" for claim in judged(probed.name, probed.document["figures"]))
        found.append(told + (": what the model is shown in training, search does not have." if held else "."))
    return found


def _mean(probed: Probed, row: str, key: str) -> float | None:
    return probed.mean(row, lambda of: float(of[key]))


def chart(probed: Probed) -> Picture:
    """Perplexity and BLEU."""
    perplexity = [
        Line(
            name=row,
            x=list(_PERPLEXITIES),
            y=[_mean(probed, row, key) or 0.0 for key in _PERPLEXITIES.values()],
            joined=False,
        )
        for row in probed.rows
    ]
    bleu = [
        Line(name=row, x=["translation"], y=[_mean(probed, row, "bleu") or 0.0], joined=False) for row in probed.rows
    ]
    panels = [
        Panel(title="validation perplexity", x="target read", y="per piece", lines=perplexity, log_y=True),
        Panel(title="BLEU", x="", y="BLEU", lines=bleu),
    ]
    caption = "Means over seeds; perplexity on a logarithmic axis."
    return picture("probe-mask", "Training with and without the causal mask", caption, panels)


def grids(probed: Probed) -> list[Grid]:
    """A few translations."""
    examples = [probed.first(row)["examples"] for row in probed.rows]
    return [
        Grid(
            caption="The first sentences of the test side, with the first seed's translations.",
            head=("source", "reference", *probed.rows),
            rows=[
                (one["source"], one["right"], *(found[place]["translation"] or "(nothing)" for found in examples))
                for place, one in enumerate(examples[0])
            ],
            words=2 + len(probed.rows),
        )
    ]
