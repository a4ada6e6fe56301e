"""Pages on mechanisms: every number and word from the documents, verdicts as far as the figures bear them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports_study import full_study
from small_corpus import configuration, small_corpus

from ablations.probes.catalogue import LONGEST, PROBES, chosen
from ablations.probes.documents import write_document
from ablations.scales import SCALES
from ablations.selection import choose
from reports.claims.mechanisms import Judged, judged, load_mechanisms
from reports.formats import significant
from reports.pages.mechanisms import render_weights, write_page
from reports.pages.page import write_report
from reports.probes import charts
from reports.probes.maps import NO_EXPLANATION
from reports.probes.pages import PAGES, pages_of
from repro.config import TransformerConfig
from repro.config.baselines import ConvS2SConfig, GnmtConfig, LstmAttentionConfig, LstmConfig
from repro.data import smoke
from repro.data.prepared import Prepared
from repro.errors import CheckError
from repro.files import write_json
from repro.models.build import build_model
from repro.probes import layers, longrange
from repro.runs.trained import Trained

TRANSFORMER = TransformerConfig(n_layers=1, d_model=16, d_ff=24, n_heads=2, max_positions=64)
MODELS: dict[str, Any] = {
    "base": TRANSFORMER,
    "scaling.off": replace(TRANSFORMER, scale_attention=False),
    "scaling.dk-quarter": replace(TRANSFORMER, d_k=2),
    "scaling.dk-quarter-off": replace(TRANSFORMER, d_k=2, scale_attention=False),
    "scaling.dk-4x": replace(TRANSFORMER, d_k=32),
    "scaling.dk-4x-off": replace(TRANSFORMER, d_k=32, scale_attention=False),
    "positions.none": replace(TRANSFORMER, positions="none"),
    "positions.learned": replace(TRANSFORMER, positions="learned"),
    "mask.off": replace(TRANSFORMER, causal_mask=False),
    "baseline.lstm": LstmConfig(n_layers=1, d_embedding=8, d_hidden=8),
    "baseline.lstm-attention": LstmAttentionConfig(d_embedding=8, d_hidden=8, d_attention=8, d_out=8),
    "baseline.gnmt": GnmtConfig(n_layers=2, d_embedding=8, d_hidden=8, d_attention=8),
    "baseline.convs2s": ConvS2SConfig(d_embedding=8, encoder=((8, 3),), decoder=((8, 3),), d_out=8, max_positions=100),
}
"""Every row that a probe needs, as a small model that has learned nothing."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("corpus")
    (place / "text").mkdir()
    return small_corpus(place / "text", place / "data")


@pytest.fixture(scope="module")
def study(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a document of every probe, measured on the small models."""
    place = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        small = layers.measure(lengths=(8, 64, 128), widths=(16, 32, 256), tokens=128, rounds=2)
        patch.setattr(layers, "measured", lambda _: small)
        for name, probe in PROBES.items():
            rows = {row: probe.measured(trained(corpus, row)) for row in probe.rows}
            results = [{"seed": 1, "measured": probe.measured_alone(1), "rows": rows}]
            write_json(place / "probes" / f"{name}.json", document(name, results, probe.figures(results)))
    return place


def trained(corpus: Prepared, row: str) -> Trained:
    plain = configuration(corpus)
    data = replace(plain.data, max_pieces=14)  # so that there are longer sentences
    config = replace(plain, model=MODELS[row].resolved(), variant=row, data=data)
    model = build_model(config.model, corpus.vocabulary().size, 1)
    device = next(model.parameters()).device
    return Trained(config=config, model=model, prepared=corpus, device=device)


def document(name: str, results: list[dict[str, Any]], figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "probe": name,
        "title": PROBES[name].title,
        "scale": "smoke",
        "seeds": [result["seed"] for result in results],
        "runs": [],
        "version": "0.1.0",
        "figures": figures,
        "results": results,
    }


def test_every_probe_has_a_page_and_a_claim() -> None:
    assert set(PAGES) == set(PROBES)
    assert {claim.probe for claim in load_mechanisms()} == set(PROBES)


def test_every_row_that_a_probe_needs_is_in_its_table_at_every_scale() -> None:
    for probe in PROBES.values():
        for scale in SCALES:
            if probe.rows:
                rows = choose(probe.table, scale, only=probe.rows, settings=probe.settings(scale)).rows
                assert {row.variant.id for row in rows} == set(probe.rows)
    assert set(LONGEST) == set(SCALES)


def test_all_stands_for_every_probe_in_its_order() -> None:
    assert [probe.name for probe in chosen(["mask", "all"])] == list(PROBES)
    assert [probe.name for probe in chosen(["mask", "order"])] == ["order", "mask"]


def test_the_page_shows_every_probe_with_its_verdict_and_loads_nothing(study: Path) -> None:
    page = write_page(study, list(PROBES)).read_text(encoding="utf-8")
    places = [page.index(f'id="probe-{name}"') for name in PROBES]
    assert places == sorted(places)
    assert page.count('class="verdict') >= len(load_mechanisms())
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "src=" not in page
    assert NO_EXPLANATION.split(":")[0] in page
    assert page == write_page(study, list(PROBES)).read_text(encoding="utf-8")


def test_the_figures_that_claims_are_about_are_in_the_documents(study: Path) -> None:
    needs_more = {"lstm_agreement_beyond_base", "agreement_lost.base", "apart_without", "apart_with"}
    needs_more |= {"kept_by_sinusoids", "sinusoids_beyond_learned", "bleu_share"}
    for claim in load_mechanisms():
        figures = json.loads((study / "probes" / f"{claim.probe}.json").read_text())["figures"]
        for part in claim.parts:
            assert part.figure in figures, part.figure
            if part.figure not in needs_more:  # the made-up language, or a model that translates
                assert figures[part.figure].get("values") != []


def test_another_measurement_gives_other_words(study: Path, tmp_path: Path) -> None:
    found = json.loads((study / "probes" / "mask.json").read_text())
    row = found["results"][0]["rows"]["mask.off"]
    told = []
    for bleu in (1.25, 97.5):
        row["bleu"], found["results"][0]["rows"]["base"]["bleu"] = bleu, 50.0
        write_json(tmp_path / "probes" / "mask.json", found)
        (page,) = pages_of(tmp_path)
        told.append(" ".join(page.words))
    assert "BLEU lower than base's" in told[0]
    assert "BLEU higher than base's" in told[1]


def test_why_the_mask_is_there_is_told_only_where_its_claim_is_reproduced(study: Path, tmp_path: Path) -> None:
    found = json.loads((study / "probes" / "mask.json").read_text())
    for share, told in (([0.1, 0.12, 0.11], True), ([0.1, 0.9, 0.5], False), ([0.1], False)):
        write_json(tmp_path / "probes" / "mask.json", found | {"figures": both([0.2, 0.21, 0.19], share)})
        (page,) = pages_of(tmp_path)
        assert any("search does not have" in line for line in page.words) is told


def test_the_summary_of_a_report_counts_the_verdicts_on_mechanisms_and_leads_to_them(
    study: Path, tmp_path: Path
) -> None:
    place = full_study(tmp_path / "s", only=["base"], seeds=(1,)).path
    assert "claims about mechanisms" not in write_report(place).read_text(encoding="utf-8")
    told = {
        "mask": both([0.2, 0.21, 0.19], [0.1, 0.12, 0.11]),
        "order": {"error_without": {"value": 0.5, "exact": True}},
        "layers": {},
    }
    for name, figures in told.items():
        found = json.loads((study / "probes" / f"{name}.json").read_text())
        write_json(place / "probes" / f"{name}.json", found | {"figures": figures})
    page = write_report(place)
    sentence = (
        "Of the 4 claims about mechanisms that were probed here 1 is reproduced, 1 is contradicted and "
        "2 are not tested."
    )
    summary = page.read_text(encoding="utf-8").split('id="summary"')[1].split("</div>")[0]
    assert sentence in summary
    assert '<a href="#mechanisms">' in summary.split(sentence)[1].split("</p>")[0]
    assert 'id="mechanisms"' in page.read_text(encoding="utf-8")
    assert sentence in (page.parent / "report.md").read_text(encoding="utf-8")


def test_a_measurement_of_layers_by_an_earlier_version_is_named(study: Path, tmp_path: Path) -> None:
    found = json.loads((study / "probes" / "layers.json").read_text())
    found["results"][0]["measured"]["schema"] = 1
    write_json(tmp_path / "probes" / "layers.json", found)
    with pytest.raises(CheckError, match="again"):
        pages_of(tmp_path)


def test_the_page_of_layers_tells_its_fit_and_the_classes_beside_what_was_counted(study: Path) -> None:
    (page,) = [page for page in pages_of(study) if page.name == "layers"]
    assert any("over the 3 largest sizes, here n from 8 to 128" in line for line in page.words)
    powers, steps = ({row[0]: row[1:] for row in grid.rows} for grid in page.grids[:2])
    assert powers["self-attention"][0] == "O(n² d)"
    # 3^5 is the first power of 3 that is 128 or more.
    assert steps["dilated convolution"] == ("O(1)", "1", "O(logₖ n)", "5")
    assert steps["LSTM"] == ("O(n)", "128", "O(n)", "128")


def test_a_fall_of_agreement_is_told_as_far_as_its_figure_bears_it(study: Path, tmp_path: Path) -> None:
    found = json.loads((study / "probes" / "long-range.json").read_text())
    near, far = smoke.DISTANCES[0], smoke.DISTANCES[-1]
    told = []
    for base, lstm in (((0.99, 0.98), (0.95, 0.40)), ((0.99, 0.98), (0.95, 0.95)), ((0.02, 0.0), (0.6, 0.1))):
        rows = found["results"][0]["rows"]
        for row, shares in (("base", base), ("baseline.lstm", lstm)):
            rows[row]["agreement"] = {"agreement_by_distance": dict(zip((near, far), shares, strict=True))}
        found["figures"] = longrange.figures([{"rows": {row: rows[row] for row in ("base", "baseline.lstm")}}])
        found["results"][0]["rows"] = {row: rows[row] for row in ("base", "baseline.lstm")}
        write_json(tmp_path / "probes" / "long-range.json", found)
        (page,) = pages_of(tmp_path)
        told.append(page.words[-1])
    assert "loses 0.550 of its agreement, base 0.010" in told[0]
    assert "did not come out" not in told[0]
    assert "did not come out here" in told[1]
    assert "says nothing of distance here" in told[2]


def test_a_page_of_weights_shows_every_sentence(corpus: Prepared, study: Path) -> None:
    sentences = json.loads((study / "probes" / "attention-maps.json").read_text())["results"][0]["rows"]["base"][
        "sentences"
    ]
    for sentence in sentences:
        for heads in (head for layers_ in sentence["maps"].values() for layer in layers_ for head in layer):
            assert all(abs(sum(row) - 1.0) < 0.01 for row in heads)
    shown = {
        "run": "a <run>",
        "variant": "base",
        "family": "transformer",
        "note": NO_EXPLANATION,
        "sentences": sentences,
    }
    page = render_weights(shown)
    assert "a &lt;run&gt;" in page
    assert all(sentence["source"] in page for sentence in sentences)


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "probes" / "mask.json", {"schema": 1, "probe": "mask"})
    with pytest.raises(CheckError, match=r"mask\.json"):
        pages_of(tmp_path)


def test_a_document_of_the_same_inputs_is_not_measured_again(tmp_path: Path) -> None:
    said: list[str] = []
    probe = PROBES["worked-example"]
    path = write_document(probe, "smoke", None, [1], tmp_path, said.append)
    before = path.read_bytes()
    assert write_document(probe, "smoke", None, [1], tmp_path, said.append) == path
    assert path.read_bytes() == before
    assert ["measured already" in line for line in said] == [False, True]
    write_document(probe, "smoke", None, [1, 2], tmp_path, said.append)
    assert "measured already" not in said[-1]


# Verdicts


def verdict(figures: dict[str, Any]) -> Judged:
    (found,) = judged("mask", figures)
    return found


def both(ratio: list[float], share: list[float]) -> dict[str, Any]:
    return {"perplexity_ratio": {"values": ratio}, "bleu_share": {"values": share}}


def test_an_interval_on_the_claimed_side_reproduces_and_one_on_the_other_contradicts() -> None:
    assert verdict(both([0.2, 0.21, 0.19], [0.1, 0.12, 0.11])).state == "reproduced"
    assert verdict(both([1.4, 1.5, 1.45], [0.1, 0.12, 0.11])).state == "contradicted"
    assert verdict(both([0.2, 0.21, 0.19], [0.1, 0.9, 0.5])).state == "inconclusive"


def test_one_seed_bears_no_verdict_and_says_on_which_side_it_lies() -> None:
    found = verdict(both([0.2], [0.8]))
    assert found.state == "inconclusive"
    assert found.found[0].reason.endswith("this one lies on the claimed side")
    assert found.found[1].reason.endswith("this one does not lie on the claimed side")


def test_nothing_measured_is_not_tested() -> None:
    assert verdict({}).state == "not tested"
    assert verdict(both([], [])).state == "not tested"


def test_an_exact_figure_and_one_with_an_interval_decide_by_themselves() -> None:
    claims = {found.claim.id: found for found in judged("layers", {
        "core_exponent": {"value": 1.9, "low": 1.8, "high": 2.0},
        "sequential_attention": {"value": 1, "exact": True},
        "sequential_recurrent_a_position": {"value": 1.0, "exact": True},
        "recurrent_latency_exponent": {"value": 0.9, "low": 0.3, "high": 1.5},
        "path_attention": {"value": 1, "exact": True},
        "overtaken.latency": {"value": 1.5, "low": 1.2, "high": 1.8},
        "overtaken.throughput": {"value": 0.3, "low": 0.2, "high": 0.4},
    })}  # fmt: skip
    assert [part.state for part in claims["layer-costs"].found] == [
        *["reproduced"] * 3,
        "inconclusive",
        "reproduced",
    ]
    assert [part.state for part in claims["short-sequences"].found] == ["reproduced", "contradicted"]
    assert claims["short-sequences"].state == "contradicted"


def test_what_cannot_be_measured_says_why() -> None:
    found = verdict({"perplexity_ratio": {"values": [0.2, 0.21, 0.19]}, "bleu_share": {"values": [], "lacking": "why"}})
    assert [(part.state, part.reason) for part in found.found][1] == ("not tested", "why")
    assert found.state == "inconclusive"


# Numbers


def test_tiny_numbers_are_told_as_powers_of_ten_and_others_as_they_are() -> None:
    told = [significant(value) for value in (0.0, 2.704e-7, -5.96e-8, 1e-6, 0.0001, 0.29837, 12.5, 1024.0)]
    assert told == ["0", "2.7×10⁻⁷", "−5.96×10⁻⁸", "1×10⁻⁶", "0.0001", "0.298", "12.5", "1020"]


def test_the_ticks_of_a_logarithmic_axis_are_the_values_that_they_stand_at() -> None:
    def shown(low: float, high: float) -> str:
        line = charts.Line(name="a", x=["one", "two"], y=[low, high], joined=False)
        return charts.picture("k", "t", "c", [charts.Panel(title="p", x="", y="", lines=[line], log_y=True)]).wide.file

    texts = re.findall(r"<text[^>]*>([^<]*)</text>", shown(13.7, 32.5))
    ticks = [float(text) for text in texts if re.fullmatch(r"[0-9.]+", text)]
    assert len(ticks) == len(set(ticks)) >= 2
    assert any("10⁻⁶" in text for text in re.findall(r"<text[^>]*>([^<]*)</text>", shown(2.7e-7, 0.3)))


# From a command to its pages


@pytest.mark.slow
def test_all_probes_from_one_command_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ablations.cli import run

    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    settings = ["train.budget=4", "train.evaluate_every=4", "train.valid_decode=none", "decode.beam=1"]
    settings += ["decode.extra_length=1", "model.n_layers=1", "model.n_heads=2"]
    command = ["probe", "all", "--scale", "smoke", "--study", str(tmp_path / "probes")]
    command += [word for setting in settings for word in ("--set", setting)]
    assert run(command) == 0
    for name in PROBES:
        found = json.loads((tmp_path / "probes" / "probes" / f"{name}.json").read_text())
        assert set(found["results"][0]["rows"]) == set(PROBES[name].rows)
        assert {run_["variant"] for run_ in found["runs"]} == set(PROBES[name].rows)
    page = (tmp_path / "probes" / "probes" / "index.html").read_text(encoding="utf-8")
    report = (tmp_path / "probes" / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="probe-{name}"' in text for name in PROBES for text in (page, report))
    before = {path: path.read_bytes() for path in (tmp_path / "probes" / "probes").glob("*.json")}
    capsys.readouterr()
    assert run(command) == 0
    assert capsys.readouterr().out.count("measured already") == len(PROBES)
    assert before == {path: path.read_bytes() for path in before}
