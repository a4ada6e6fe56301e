"""Figures: the same bytes every time, points where they belong, labels that do not cover one another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reports_study import TOUR, SyntheticStudy, full_study, tiny_config

from reports.curves import curve
from reports.drawing import SERIES, Margins, drawing, printable, sheet, style
from reports.figures import cost_picture, difference_picture, window
from reports.labels import place
from reports.learning import learning_panels
from reports.paper import load_paper
from reports.records import Study, load_study
from repro.files import write_text


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    diverged = ("diverged", "x")
    states = {("A.h1", 2): ("failed", "x"), ("scaling.off", 1): diverged, ("scaling.off", 2): diverged}
    path = tmp_path_factory.mktemp("studies") / "s"
    return load_study(full_study(path, only=TOUR, seeds=(1, 2), states=states).path)


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_every_row_with_a_score_is_a_labelled_point(study: Study) -> None:
    picture = cost_picture(study)
    assert picture is not None
    shown = texts(picture.wide.file)
    for variant in study.variants:
        found = [text for text in shown if text.split("  ")[0] == variant.id]
        assert len(found) == (0 if variant.id == "scaling.off" else 1)
    assert any(text.startswith("positions.none  1") for text in shown)  # far below: its value stands beside it
    assert "training FLOPs a run (our count)" in shown


def test_the_paper_stands_beside_our_differences(study: Study) -> None:
    picture = difference_picture(study, load_paper())
    assert picture is not None
    shown = texts(picture.wide.file)
    assert {"this study", "the paper", "A.h1", "positions.none"} <= set(shown)
    assert "base" not in shown


def test_there_is_no_figure_without_a_result(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config(), "missing")
    empty = load_study(made.write())
    assert cost_picture(empty) is None
    assert difference_picture(empty, load_paper()) is None
    assert learning_panels(empty) == []


def test_an_unfinished_row_shows_how_far_it_came(study: Study) -> None:
    panels = [panel for panel in learning_panels(study) if panel.group == "scaling"]
    assert [panel.axis for panel in panels] == ["steps", "flops"]
    assert "scaling.off (unfinished)" in texts(panels[0].drawing.file)


def test_figures_are_the_same_bytes_whatever_was_drawn_before(study: Study) -> None:
    first = [panel.drawing for panel in learning_panels(study)]
    picture = cost_picture(study)
    assert [panel.drawing for panel in learning_panels(study)] == first
    assert cost_picture(study) == picture


def test_figures_do_not_depend_on_the_users_style(study: Study) -> None:
    import matplotlib as mpl

    plain = cost_picture(study)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "text.usetex": False}):
        assert cost_picture(study) == plain


def test_a_figure_holds_no_date_and_no_maker(study: Study) -> None:
    picture = cost_picture(study)
    assert picture is not None
    assert not re.search(r"20\d\d-\d\d-\d\d|Matplotlib|metadata", picture.wide.file)


def test_inside_the_page_colours_follow_the_theme(study: Study) -> None:
    picture = cost_picture(study)
    assert picture is not None
    assert not re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", picture.wide.inline)
    assert "var(--series-1)" in picture.wide.inline
    assert "var(" not in picture.wide.file
    assert SERIES[0] in picture.wide.file


def test_a_name_that_looks_like_a_colour_stays_a_name() -> None:
    with style():
        figure, (axes,) = sheet(200, 100, Margins(left=10, right=10, top=10, bottom=10))
        axes.set_title(f"{SERIES[0]} <&> $x_1$")
        drawn = drawing(figure, "x", 'says "<&>"')
    assert f"{SERIES[0]} <&> $x_1$" in texts(drawn.inline)
    assert ElementTree.fromstring(drawn.file).attrib["aria-label"] == 'says "<&>"'


def test_control_characters_do_not_break_a_figure() -> None:
    assert printable("a\x0bb\x00c") == "a\ufffdb\ufffdc"


def test_a_curve_is_the_mean_over_the_stretch_that_all_runs_cover(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    points = {1: [(100, 2.0), (200, 4.0), (300, 6.0)], 2: [(150, 4.0), (250, 8.0)]}
    for seed, values in points.items():
        run = made.run(tiny_config(seed=seed))
        lines = [
            {"step": step, "time": 1.0, "metrics": {"valid/bleu": value, "train/flops": step * 10.0}}
            for step, value in values
        ]
        write_text(run.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    runs = load_study(made.write()).runs
    found = curve(runs, "valid/bleu", "steps")
    assert found is not None
    assert found.x.tolist() == [150, 200, 250]
    assert found.mean.tolist() == [3.5, 5.0, 6.5]
    assert found.lowest.tolist() == [3.0, 4.0, 5.0]
    assert found.highest.tolist() == [4.0, 6.0, 8.0]
    by_flops = curve(runs, "valid/bleu", "flops")
    assert by_flops is not None
    assert by_flops.x.tolist() == [1500, 2000, 2500]
    assert by_flops.mean.tolist() == [3.5, 5.0, 6.5]
    assert curve(runs, "valid/unheard-of", "steps") is None


def test_a_failed_seed_does_not_cut_the_curve_of_the_finished_ones(study: Study) -> None:
    found = curve(study.by_variant["A.h1"], "valid/bleu", "steps")
    assert found is not None
    assert (found.n, found.finished) == (1, True)
    assert found.x[-1] == study.settings("base")["train.budget"]


def test_a_window_leaves_out_only_what_lies_far_out() -> None:
    assert not window([90.0, 91.0, 92.0, 93.0, 94.0, 15.0], least=1.0).inside(15.0)
    assert window([90.0, 91.0, 92.0, 93.0, 94.0, 85.0], least=1.0).inside(85.0)
    alone = window([20.0], least=1.0)
    assert alone.low < 20.0 < alone.high


def test_labels_stay_inside_and_do_not_touch() -> None:
    generator = np.random.default_rng(7)
    points = [(float(x), float(y)) for x, y in generator.normal((300, 200), (60, 30), size=(25, 2))]
    labels = place(points, [f"row-{number}" for number in range(25)], size=11.0, frame=(0, 0, 600, 400))
    assert len(labels) == 25
    for number, one in enumerate(labels):
        assert 0 <= one.x < one.right <= 600
        for other in labels[number + 1 :]:
            apart = one.right <= other.x or other.right <= one.x or abs(one.y - other.y) >= one.height
            assert apart
