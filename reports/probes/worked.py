"""The page on the worked example: every step of attention on three tokens."""

from __future__ import annotations

from collections.abc import Sequence

from reports.figures.parts import Picture
from reports.formats import fixed, plain
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, number
from reports.probes.records import Probed

_HEAT = ("weights",)


def words(probed: Probed) -> list[str]:
    """What is shown, and what it comes to."""
    cases = {case["id"]: case for case in probed.alone["cases"]}
    found = [
        f"Three tokens with embeddings of width {probed.alone['d_k']}; queries, keys and values are the embeddings "
        "themselves, so that every number can be checked by hand.",
    ]
    rows = {name: _step(case, "weights")[-1] for name, case in cases.items()}
    for name, case in cases.items():
        weights = ", ".join(fixed(value or 0.0, 6) for value in rows[name])
        outputs = ", ".join(fixed(value or 0.0, 6) for value in _step(case, "outputs")[-1])
        found.append(f"{case['title'].capitalize()}: the last token's weights are [{weights}], its output [{outputs}].")
    top = {name: max(value or 0.0 for value in row) for name, row in rows.items()}
    if "scaled" in top and "unscaled" in top:
        more = "more" if top["unscaled"] > top["scaled"] else "no more"
        found.append(f"Without the division the last token leans {more} on its strongest match.")
    found.append(
        "The code that the models run differs from these steps by at most "
        f"{number(max(probed.alone['distance'].values()), 2)}."
    )
    return found


def _step(case: dict[str, object], name: str) -> Sequence[Sequence[float | None]]:
    steps: list[dict[str, Sequence[Sequence[float | None]]]] = case["steps"]  # type: ignore[assignment]
    return next(step["rows"] for step in steps if step["id"] == name)  # type: ignore[comparison-overlap]


def chart(probed: Probed) -> Picture:
    """Whom each token attends to, in every case."""
    panels = [
        Panel(
            title=f"token {token + 1} attends to",
            x="token",
            y="weight",
            lines=[
                Line(
                    name=case["id"],
                    x=[str(place + 1) for place in range(len(_step(case, "weights")))],
                    y=[value or 0.0 for value in _step(case, "weights")[token]],
                )
                for case in probed.alone["cases"]
            ],
        )
        for token in range(3)
    ]
    caption = "The rows of the weights softmax(Q Kᵀ / √d_k) in each case; every row adds up to 1."
    return picture("probe-worked-example", "Attention weights of three tokens", caption, panels)


def grids(probed: Probed) -> list[Grid]:
    """Each case, step by step."""
    return [
        Grid(
            caption=f"{case['title'].capitalize()}. Step {number_}, {step['symbol']}: {step['says']}.",
            head=("token", *(str(column + 1) for column in range(len(step["rows"][0])))),
            rows=[
                (str(token), *("–" if value is None else _shown(value) for value in row))
                for token, row in enumerate(step["rows"], 1)
            ],
            heat=step["rows"] if step["id"] in _HEAT else None,
            folded="" if case["id"] == "scaled" else case["title"].capitalize(),
        )
        for case in probed.alone["cases"]
        for number_, step in enumerate(case["steps"], 1)
    ]


def _shown(value: float) -> str:
    return plain(value) if float(value).is_integer() else fixed(value, 6)
