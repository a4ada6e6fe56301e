"""Several studies as one, what may stand in one table, and where the numbers of a run come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports_study import SIGNATURE, SyntheticStudy, full_study, tiny_config

from ablations.tables import TABLES
from reports.pages import provenance
from reports.records.collection import load_studies
from reports.records.study import load_study
from reports.tables.table3 import main_table
from repro.config import TransformerConfig
from repro.errors import CheckError
from repro.files import write_json


def one_head(seed: int = 1, **changes: object) -> object:
    model = TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=1)
    return tiny_config(variant="A.h1", seed=seed, model=model, **changes)


def two_rows(path: Path) -> SyntheticStudy:
    made = SyntheticStudy(path, base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant("A.h1", "A", "1 head", {"model.n_heads": 1})
    return made


def test_studies_of_one_experiment_become_one(tmp_path: Path) -> None:
    full_study(tmp_path / "tour", table="demo", seeds=(1, 2))
    full_study(tmp_path / "table", table="table3", seeds=(1, 2, 3))
    (study,) = load_studies([tmp_path / "tour", tmp_path / "table"])
    assert study.name == "tour + table"
    assert (study.table, study.seeds) == ("demo+table3", (1, 2, 3))
    published = [row.id for row in TABLES["table3"]]
    assert [variant.id for variant in study.variants if variant.id in published] == published
    assert {variant.id for variant in study.variants} - set(published) == {"scaling.off", "positions.none"}
    # Nine rows of the tour with two seeds, and of table 3 the thirteen other rows with two, and twenty with the third.
    assert len(study.trained) == 9 * 2 + 13 * 2 + 20
    assert len({run.hash for run in study.trained}) == len(study.trained)
    assert main_table(study).title == "Demo and Table 3 at scale smoke"


def test_a_row_that_another_study_has_under_its_own_name_shares_the_runs(tmp_path: Path) -> None:
    full_study(tmp_path / "table", table="table3", seeds=(1,))
    full_study(tmp_path / "positions", table="positions", seeds=(1,))
    (study,) = load_studies([tmp_path / "table", tmp_path / "positions"])
    learned = study.by_variant["positions.learned"][0]
    assert learned.same_as == study.by_variant["E.learned"][0].id
    assert learned.path == study.by_variant["E.learned"][0].path


def test_of_two_copies_of_a_run_the_finished_one_is_read(tmp_path: Path) -> None:
    first, second = two_rows(tmp_path / "a"), two_rows(tmp_path / "b")
    for made, state in ((first, "failed"), (second, "done")):
        made.run(tiny_config(seed=1))
        made.run(one_head(), state, "no luck" if state == "failed" else "")
        made.write()
    for paths in ([first.path, second.path], [second.path, first.path]):
        (study,) = load_studies(paths)
        (run,) = study.by_variant["A.h1"]
        assert (run.state, run.study) == ("done", "b")


def test_other_scales_bases_and_corpora_stay_apart(tmp_path: Path) -> None:
    full_study(tmp_path / "smoke", only=["base"], seeds=(1,))
    full_study(tmp_path / "m30k", scale="multi30k-cpu", only=["base"], seeds=(1,))
    wide = SyntheticStudy(tmp_path / "wide", base=tiny_config())
    wide.variant("base", "base", "base", {})
    wide.run(tiny_config())
    wide.write()
    names = [study.name for study in load_studies([tmp_path / name for name in ("smoke", "m30k", "wide", "smoke")])]
    assert names == ["smoke", "m30k", "wide"]


def test_a_row_that_two_studies_plan_differently_keeps_them_apart(tmp_path: Path) -> None:
    for name, heads, seed in (("a", 1, 1), ("b", 2, 2)):
        made = SyntheticStudy(tmp_path / name, base=tiny_config())
        made.variant("base", "base", "base", {})
        made.variant("mine", "mine", "mine", {"model.n_heads": heads})
        model = TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=heads)
        made.run(tiny_config(seed=seed))
        made.run(tiny_config(variant="mine", seed=seed, model=model))
        made.write()
    assert len(load_studies([tmp_path / "a", tmp_path / "b"])) == 2


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ({"test": {"signatures": {"bleu": SIGNATURE.replace("2.6.0", "2.5.1")}}}, "BLEU signatures"),
        ({"test": {"reference_sha256": "0" * 64}}, "test references"),
        ({"digests": {"vocabulary": "0" * 64}}, "vocabularies"),
    ],
)
def test_mixed_scores_are_refused_unless_asked_for_and_then_marked(
    tmp_path: Path, overrides: dict[str, object], what: str
) -> None:
    made = two_rows(tmp_path / "s")
    for seed in (1, 2):
        made.run(tiny_config(seed=seed))
        made.run(one_head(seed), **(overrides if seed == 2 else {}))
    study = load_study(made.write())
    with pytest.raises(CheckError, match=rf"different {what}.*--mixed"):
        main_table(study)
    table = main_table(study, mixed=True)
    assert {row.id: "§" in row.marks for row in table.rows} == {"base": False, "A.h1": True}
    assert what in table.footnotes["§"]


def test_every_run_tells_where_its_numbers_come_from(tmp_path: Path) -> None:
    made = two_rows(tmp_path / "s")
    made.run(tiny_config(seed=1))
    made.run(tiny_config(seed=2))
    made.run(one_head(), "missing")
    study = load_study(made.write())
    known = study.by_variant["base"][0]
    marks = {known.id: {"child": "0a1b2c", "fingerprint": "", "state": "done", "ended": 0}}
    write_json(made.path / "tracking.json", {"schema": 1, "stores": {"sqlite:///x": {"parent": None, "runs": marks}}})
    study = load_study(made.path)
    rows = {row.id: row for row in provenance.rows(study, tmp_path / "out")}
    first, second = rows["base"].runs
    assert (first.mlflow, second.mlflow) == ("0a1b2c", "")
    assert (first.tree, second.tree, rows["A.h1"].runs[0].tree) == ("clean", "changed", "")
    assert (tmp_path / "out" / first.link).resolve() == known.path.resolve()
    digest = study.runs[0].result["digests"]["corpus"]
    expected = {
        "configuration hash": known.hash,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "corpus digest": digest,
        "vocabulary digest": known.result["digests"]["vocabulary"],
        "BLEU signature": SIGNATURE,
        "MLflow run": "0a1b2c",
        "device": "AMD EPYC & Söhne",
        "versions": "attention-ablations 0.1.0, torch 2.13.0, sacrebleu 2.6.0",
    }
    assert first.records.items() >= expected.items()


def test_another_family_tells_its_own_settings_and_which_of_bases_it_lacks(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", table="baselines", only=["base", "baseline.gnmt"], seeds=(1,)).path)
    base, gnmt = provenance.rows(study, tmp_path)
    assert base.absent == ()
    assert {"model.n_heads", "model.norm", "model.scale_attention", "model.positions"} <= set(gnmt.absent)
    assert "model.family = gnmt" in gnmt.configuration
    assert any(line.startswith("model.d_hidden = ") for line in gnmt.configuration)
    told = {*provenance.shared(study).differs, *gnmt.differs}
    departures = {line for line in gnmt.differs if "(its paper: " in line}
    assert told - departures == set(study.by_variant["baseline.gnmt"][0].result["differs_from_paper"])
    assert any("of the step before" in line for line in departures)
