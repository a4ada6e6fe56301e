"""Figures: the same bytes every time, points where they belong, labels that do not cover one another."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reports_study import SyntheticStudy, full_study, tiny_config

from reports.figures.cost import cost_picture, front, points_of
from reports.figures.drawing import SERIES, Margins, drawing, in_print, printable, sheet, style
from reports.figures.effects import difference_picture
from reports.figures.labels import Label, place
from reports.figures.learning import learning_panels
from reports.figures.lengths import lengths_picture
from reports.figures.parts import spread, window
from reports.figures.sizes import sizes_picture, tracks
from reports.figures.speed import speed_picture
from reports.figures.systems import systems_picture
from reports.records.paper import load_paper
from reports.records.study import Study, load_study
from reports.statistics.curves import curve
from repro.config import TransformerConfig
from repro.files import write_text


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    diverged = ("diverged", "x")
    states = {("A.h1", 2): ("failed", "x"), ("scaling.off", 1): diverged, ("scaling.off", 2): diverged}
    path = tmp_path_factory.mktemp("studies") / "s"
    only = ("base", "A.h1", "A.h4", "A.h16", "scaling.off", "positions.none")
    return load_study(full_study(path, only=only, seeds=(1, 2), states=states).path)


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
    assert list(panels[0].drawings) == ["steps", "flops", "seconds"]
    assert "scaling.off (unfinished)" in texts(panels[0].drawings["seconds"].file)


def test_figures_are_the_same_bytes_whatever_was_drawn_before(study: Study) -> None:
    first = [panel.drawings for panel in learning_panels(study)]
    picture = cost_picture(study)
    assert picture is not None
    print_forms = in_print(picture.wide)
    assert [panel.drawings for panel in learning_panels(study)] == first
    again = cost_picture(study)
    assert again == picture
    assert again is not None
    assert in_print(again.wide) == print_forms


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
        drawn = drawing(figure, "x", 'says "<&>"', "more & more")
    assert f"{SERIES[0]} <&> $x_1$" in texts(drawn.inline)
    root = ElementTree.fromstring(drawn.file)
    told = {node.attrib["id"]: node.text for node in root if node.tag.endswith(("title", "desc"))}
    assert [told[name] for name in root.attrib["aria-labelledby"].split()] == ['says "<&>"', "more & more"]


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
    assert (found.low, found.high) == (None, None)  # two seeds are too few for a band
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


def test_a_label_without_a_line_is_nearest_to_its_own_point() -> None:
    points = [(100.0, 100.0), (112.0, 104.0), (100.0, 90.0), (300.0, 100.0)]
    labels = place(points, ["first", "second", "third", "alone"], size=11.0, frame=(0, 0, 600, 200))
    assert len(labels) == 4
    assert not labels[3].apart
    for label in (label for label in labels if not label.apart):

        def away(point: tuple[float, float], label: Label = label) -> float:
            dx = max(label.x - point[0], point[0] - label.right, 0.0)
            return float(np.hypot(dx, max(abs(point[1] - label.y) - label.height / 2, 0.0)))

        assert min(points, key=away) == label.point


def test_the_band_of_a_curve_is_students_interval_at_each_point(tmp_path: Path) -> None:
    from scipy import stats

    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    values = {1: (2.0, 10.0), 2: (3.0, 14.0), 3: (7.0, 12.0)}
    for seed, pair in values.items():
        run = made.run(tiny_config(seed=seed))
        lines = [
            {"step": step, "time": 1.0, "metrics": {"valid/bleu": value, "time/train_seconds": step / 10}}
            for step, value in zip((100, 200), pair, strict=True)
        ]
        write_text(run.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    found = curve(load_study(made.write()).runs, "valid/bleu", "seconds")
    assert found is not None
    assert found.x[:2].tolist() == [10.0, 20.0]
    assert found.low is not None
    assert found.high is not None
    for point in (0, 1):
        column = [pair[point] for pair in values.values()]
        low, high = stats.t.interval(0.95, 2, loc=np.mean(column), scale=stats.sem(column))
        assert found.low[point] == pytest.approx(low)
        assert found.high[point] == pytest.approx(high)


def with_scores(path: Path, rows: dict[str, tuple[float, float]]) -> Study:
    """A study of one seed whose rows have this (FLOPs, BLEU)."""
    made = SyntheticStudy(path, base=tiny_config())
    for number, (name, (flops, bleu)) in enumerate(rows.items()):
        made.variant(name, "base" if name == "base" else "A", name, {})
        model = TransformerConfig(n_layers=2, d_model=32, d_ff=64 + number, n_heads=4)
        made.run(tiny_config(variant=name, seed=1, model=model), "done", train_flops=flops, test={"bleu": bleu})
    return load_study(made.write())


def test_the_front_holds_the_rows_that_none_beats_in_both(tmp_path: Path) -> None:
    rows = {"base": (4.0, 30.0), "cheap": (1.0, 20.0), "worse": (2.0, 19.0), "dear": (8.0, 29.0), "best": (9.0, 31.0)}
    study = with_scores(tmp_path / "s", rows)
    assert [point.variant for point in front(points_of(study))] == ["cheap", "base", "best"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = tmp_path_factory.mktemp("studies") / "whole"
    return load_study(full_study(path, table="table3+baselines", seeds=(1, 2, 3)).path)


def test_each_size_stands_beside_the_papers_at_the_same_ratio_to_base(whole: Study) -> None:
    found = {track.size.name: track for track in tracks(whole, load_paper())}
    # The paper's Table 3, by hand: rows (A), (B) and (C).
    assert found["heads"].published == {0.125: -0.9, 0.5: -0.3, 2.0: 0.0, 4.0: -0.4}
    assert found["d_k"].published == {0.25: -0.7, 0.5: -0.4}
    assert found["d_ff"].published == {0.5: -0.4, 2.0: 0.4}
    assert found["d_model"].published == {0.5: -1.3, 2.0: 0.2}
    assert found["layers"].published == pytest.approx({1 / 3: -2.1, 2 / 3: -0.5, 4 / 3: -0.3})
    assert sorted(found["heads"].ours) == [0.125, 0.5, 2.0, 4.0]
    assert sorted(found["layers"].ours) == pytest.approx([1 / 3, 2 / 3, 4 / 3])
    assert 2.0 not in found["d_k"].ours  # width takes d_k with it and is no change of d_k
    picture = sizes_picture(whole, load_paper())
    assert picture is not None
    shown = texts(picture.wide.file)
    assert {"heads", "d_k", "layers", "d_model", "d_ff", "the paper", "this study", "1/8", "2/3"} <= set(shown)
    assert "(64 here, 512 there)" in shown


def test_families_are_told_apart_by_length(whole: Study) -> None:
    picture = lengths_picture(whole)
    assert picture is not None
    shown = texts(picture.wide.file)
    assert {"base", "baseline.lstm", "baseline.convs2s", "up to 10", "31–40", "17 sentences"} <= set(shown)
    assert not any("over 40" in text for text in shown)  # two sentences there: left out, and said so
    assert "fewer than 10 sentences are left out" in picture.caption


def test_lengths_say_whose_they_are_and_mix_none(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", only=["base", "A.h1", "A.h4"], seeds=(1, 2)).path)
    picture = lengths_picture(study)
    assert picture is not None
    assert "length of the source, words" in texts(picture.wide.file)
    old = [run for run in study.finished if run.variant == "A.h1"]
    for run in old:
        for group in run.result["test"]["bleu_by_length"]:
            del group["by"]  # as results of earlier versions
    mixed = lengths_picture(study)
    assert mixed is not None
    assert "A.h1" not in texts(mixed.wide.file)
    assert "2 runs of an earlier version, grouped by reference, left out" in mixed.caption
    for run in study.finished:
        for group in run.result["test"]["bleu_by_length"]:
            group.pop("by", None)
    every = lengths_picture(study)
    assert every is not None
    assert "length of the reference, words" in texts(every.wide.file)


def test_published_systems_stand_apart_on_the_same_axes(whole: Study) -> None:
    picture = systems_picture(whole, load_paper())
    assert picture is not None
    shown = texts(picture.wide.file)
    assert {"Transformer big", "GNMT + RL", "ConvS2S", "base", "lstm", "this study", "published"} <= set(shown)
    assert "other data" in picture.caption


def test_speeds_name_their_unit_and_their_machines(whole: Study) -> None:
    picture = speed_picture(whole)
    assert picture is not None
    assert "target tokens a second" in texts(picture.wide.file)
    assert "one machine" in picture.caption


def test_a_figure_says_why_it_has_no_intervals(study: Study, whole: Study) -> None:
    few, enough = difference_picture(study, load_paper()), difference_picture(whole, load_paper())
    assert few is not None
    assert enough is not None
    assert "two seeds a row are too few" in few.caption
    assert "95 % intervals of the mean by Student's t over seeds (n = 3)" in enough.caption


def test_every_figure_speaks_to_a_screen_reader(whole: Study) -> None:
    from reports.figures.pictures import pictures

    for picture in pictures(whole, load_paper()):
        for drawn in (picture.wide, picture.narrow):
            root = ElementTree.fromstring(drawn.file)
            told = [node.text for node in root if node.tag.endswith(("title", "desc"))]
            assert len(told) == 2
            assert all(told)


def test_names_at_the_ends_of_lines_keep_their_distance() -> None:
    placed = spread([10.0, 11.0, 11.5, 40.0], 12.0, 0.0, 60.0)
    ordered = sorted(placed)
    assert all(after - before >= 12.0 - 1e-9 for before, after in pairwise(ordered))
    assert ordered[0] >= 0.0
    assert ordered[-1] <= 60.0
