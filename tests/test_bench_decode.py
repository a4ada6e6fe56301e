"""What `ablate bench decode` times is the same model and the same search in every system."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_corpus import configuration, small_corpus

from ablations.cli import run
from repro.bench import decode, shapes
from repro.bench.conversion import refuse_others
from repro.bench.decode import SYSTEMS, Work, build, measure, of_model, of_shape
from repro.bench.shapes import Shape
from repro.config import DecodeConfig, TransformerConfig
from repro.config.baselines import LstmConfig
from repro.data.pieces import BOS, EOS, PAD, UNK
from repro.data.prepared import Prepared
from repro.errors import UsageError
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute

PEERS = ["ctranslate2", "generate"]
TINY = Shape(
    name="tiny",
    model=TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4),
    vocabulary_size=50,
    batch_tokens=60,
    device_batch_tokens=60,
    src=6.0,
    tgt=7.0,
    batches=2,
)


def talkative(layout: Any) -> Transformer:
    """Random, with no weight at zero, and scaled so that translations differ by their source and most of them end."""
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2, sinusoid_layout=layout)
    model = build_model(config, 40, seed=4)
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            elif "cross" in name:
                parameter.mul_(2.0)
        model.embedding.mul_(2.0)
        model.embedding[EOS].mul_(2.0)
        # The others leave pieces that are never generated out of the softmax: those must have no share in it.
        model.decoder[-1].feed_forward_frame.norm.bias[0] += 4.0
        model.embedding[[PAD, UNK, BOS], 0] = -10.0
    return model


def pairs(name: str, work: Work) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each sentence's translation by this project and by the system called `name`."""
    ours, peer = build("ours", work), build(name, work)
    return [pair for batch in work.batches() for pair in zip(ours.translate(batch), peer.translate(batch), strict=True)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_the_converted_weights_give_the_same_translations(name: str, layout: Any) -> None:
    rng = random.Random(3)
    sources = [[rng.randrange(4, 40) for _ in range(rng.randint(1, 12))] for _ in range(40)]
    work = of_model("random", talkative(layout), sources, DecodeConfig(extra_length=30, batch_tokens=600))
    every = pairs(name, work)
    assert len({ours for ours, _ in every}) > 6
    # Where a hypothesis meets the cap, each system ranks what is cut in its own way.
    ended = [pair for pair in every if max(len(pieces) for pieces in pair) < 30]
    assert len(ended) > 10
    assert len({len(ours) for ours, _ in ended}) > 2
    assert sum(ours == theirs for ours, theirs in ended) >= len(ended) - 1  # two may be as good but for rounding


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_with_random_weights_every_translation_is_as_long_as_the_longest_source_of_its_batch(name: str) -> None:
    work = of_shape(TINY, 30)
    system = build(name, work)
    for batch in work.batches():
        longest = max(len(work.sources[index]) for index in batch)
        assert {len(pieces) for pieces in system.translate(batch)} == {longest}


def test_every_sentence_is_in_one_batch_and_blank_ones_in_none() -> None:
    sources = [[5, 6], [], *([7] * length for length in range(1, 21))]
    work = of_model("random", of_shape(TINY, 1).model, sources, DecodeConfig(batch_tokens=200))
    assert len(work.sources) == 21
    assert sorted(index for batch in work.batches() for index in batch) == list(range(21))


def test_ratios_and_shares_follow_from_the_seconds_and_the_outputs() -> None:
    document = measure(of_shape(TINY, 12), ["ours", *PEERS], rounds=2)
    assert (document["beam"], document["alpha"], document["sentences"]) == (4, 0.0, 12)
    ours = document["systems"][0]
    assert (ours["times_slower"], ours["same_outputs"]) == (1.0, 1.0)
    for entry in document["systems"]:
        assert len(entry["seconds"]) == 2
        assert entry["sentences_per_second"] * entry["times_slower"] == pytest.approx(ours["sentences_per_second"])
        assert 0.0 <= entry["same_outputs"] <= 1.0


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (LstmConfig(), "the family lstm"),
        (TransformerConfig(norm="pre"), "model.norm is pre"),
        (TransformerConfig(positions="learned"), "model.positions is learned"),
        (TransformerConfig(d_k=16), "model.d_k is 16"),
        (TransformerConfig(scale_attention=False), "model.scale_attention is False"),
    ],
)
def test_models_that_the_others_cannot_express_are_refused(config: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        refuse_others(config, "a run")
    refuse_others(TransformerConfig(n_layers=2, d_model=64, n_heads=4, dropout=0.3), "a run")


def test_a_trained_runs_test_set_is_translated_alike_and_printed(
    prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = RunDirectory.create_at(tmp_path / "trained", configuration(prepared), prepared.directory)
    assert run(["bench", "decode", str(trained.path)]) == 3
    assert "has no trained weights" in capsys.readouterr().err
    assert execute(trained).state == "done"
    assert run(["bench", "decode", str(trained.path), "--rounds", "1", "--sentences", "10", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["works"]
    assert (told["work"], told["sentences"]) == ("trained", 10)
    assert [entry["system"] for entry in told["systems"]] == list(SYSTEMS)


def test_the_table_names_every_system(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    assert run(["bench", "decode", "--shape", "tiny", "--sentences", "8", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny on ")
    assert lines[1].split() == ["system", "sentences/s", "tokens/s", "slower", "same", "outputs"]
    assert [line.split()[0] for line in lines[2:]] == list(SYSTEMS)


def test_a_run_that_was_trained_in_many_threads_is_timed_in_one_and_named_as_it_is(
    prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configuration(prepared, threads=2, budget=8)
    trained = RunDirectory.create_at(tmp_path / "runs [bold]", settings, prepared.directory)
    assert execute(trained).state == "done"
    seen = []
    translate = decode.Ours.translate

    def told(self: decode.Ours, batch: Sequence[int]) -> Any:
        seen.append(torch.get_num_threads())
        return translate(self, batch)

    monkeypatch.setattr(decode.Ours, "translate", told)
    before = torch.get_num_threads()
    assert run(["bench", "decode", str(trained.path), "--rounds", "1", "--sentences", "3", "--system", "ours"]) == 0
    torch.set_num_threads(before)
    assert set(seen) == {1}
    assert capsys.readouterr().out.startswith("runs [bold] on ")


def test_more_sentences_than_the_test_set_has_are_all_it_has(
    prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = RunDirectory.create_at(tmp_path / "trained", configuration(prepared, budget=8), prepared.directory)
    assert execute(trained).state == "done"
    arguments = [str(trained.path), "--rounds", "1", "--sentences", "1000000", "--system", "ours,ours", "--json"]
    assert run(["bench", "decode", *arguments]) == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    (told,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["works"]
    assert told["sentences"] == 16
    assert [entry["system"] for entry in told["systems"]] == ["ours"]


def damaged(run_directory: RunDirectory, change: str) -> None:
    weights_file = run_directory.checkpoints / "final.safetensors"
    if change == "published":
        weights_file.unlink()
    elif change == "cut short":
        weights_file.write_bytes(weights_file.read_bytes()[:300])
    else:
        weights = {name: tensor.clone() for name, tensor in load_file(weights_file).items()}
        weights["embedding"][7] = torch.nan
        save_file(weights, weights_file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("published", "its weights are not here"),
        ("cut short", "damaged"),
        ("not finite", "the model's probabilities are not finite"),
    ],
)
def test_a_run_without_sound_weights_is_one_line(
    change: str, words: str, prepared: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = RunDirectory.create_at(tmp_path / "trained", configuration(prepared, budget=8), prepared.directory)
    assert execute(trained).state == "done"
    damaged(trained, change)
    capsys.readouterr()
    assert run(["bench", "decode", str(trained.path), "--rounds", "1", "--system", "ours"]) == 3
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, len(told.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "nix"], "no shape is called 'nix'"),
        (["--system", "nix"], "no system is called 'nix' (choose from ours, ctranslate2, generate)"),
        (["--shape", "smoke", "--data", "somewhere"], "the data of no run"),
        (["somewhere", "--shape", "smoke"], "a run and a shape"),
    ],
)
def test_what_is_not_known_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "decode", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("name", "package"), [("ctranslate2", "ctranslate2"), ("generate", "transformers")])
def test_a_system_that_is_not_installed_is_not_timed(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PACKAGES", decode._PACKAGES | {name: "no_such_package"})
    assert decode.available() == [other for other in SYSTEMS if other != name]
    with pytest.raises(UsageError, match=f"{name} needs the package no_such_package"):
        build(name, of_shape(TINY, 3))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, package, None)  # what keeps a package from being imported
    assert decode.available() == [other for other in SYSTEMS if other != name]
    with pytest.raises(UsageError, match=f"{name} needs the package {package}"):
        build(name, of_shape(TINY, 3))


def test_a_system_whose_package_cannot_be_imported_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('libbroken.so:\\nno such file')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)

    def translator(*_: object) -> None:
        importlib.import_module("broken_package")

    monkeypatch.setattr(decode, "ctranslate2_translator", translator)
    assert run(["bench", "decode", "--shape", "tiny", "--sentences", "3", "--rounds", "1"]) == 3
    told = capsys.readouterr().err
    assert "ctranslate2 is installed but cannot be imported: libbroken.so: no such file" in told
    assert len(told.splitlines()) == 1
