"""`ablate verify`: everything holds here, a broken product is caught where it is broken, and the outcome is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from ablations.cli import proof, run
from repro.accounting import flops, parameters, peaks
from repro.config import TransformerConfig
from repro.decoding import beam, penalty
from repro.decoding.beam import beam_search
from repro.models import additive, attention, convs2s, positions, recurrent, source, transformer
from repro.models.attention import Attention
from repro.models.lstm import Lstm
from repro.models.transformer import Transformer, TransformerState
from repro.training import evaluation, loss, schedule
from repro.verify import suite
from repro.verify.check import Claim, at_least, at_most, equal, near, plain
from repro.verify.suite import CLAIMS, TITLES, verify
from repro.verify.toys import FAMILIES, padded, sentences, toy


def failures(*ids: str) -> set[str]:
    """Of the checks whose ids begin with one of `ids`, those that fail."""
    return {check.id for check in verify([claim for claim in CLAIMS if claim.id.startswith(ids)]) if not check.ok}


def groups(ids: Iterable[str]) -> set[str]:
    return {id.split(".")[0] for id in ids}


# All is well.


def test_everything_holds_here_and_the_document_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--json"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    document = json.loads(told.out)
    assert list(document) == ["checks"]
    checks = document["checks"]
    assert all(list(check) == ["id", "expected", "got", "source", "ok"] for check in checks)
    assert [check["id"] for check in checks if check["ok"] is not True] == []
    ids = [check["id"] for check in checks]
    assert len(set(ids)) == len(ids)
    assert {id.split(".")[0] for id in ids} == set(TITLES)


def test_every_family_that_can_be_built_is_looked_at() -> None:
    ids = [claim.id for claim in CLAIMS]
    assert set(FAMILIES) >= {"transformer", "lstm", "lstm-attention", "gnmt", "convs2s"}
    for family in FAMILIES:
        for id in (f"masks.{family}-past", f"flops.{family}-train", f"search.{family}-beam-4"):
            assert id in ids


VECTORS: dict[str, list[str]] = {
    "1 attention by hand": [
        f"attention.{name}"
        for name in ("weights", "outputs", "unscaled-weights", "unscaled-output", "changed-weights", "changed-outputs")
    ],
    "2 variance of scores": [f"attention.variance-{d_k}{kind}" for d_k in (16, 64, 256) for kind in ("", "-unscaled")],
    "3 permutation": [f"positions.{name}" for name in ("none-permutes-memory", "none-keeps-decoder")]
    + ["positions.sinusoidal-see-order", "positions.learned-see-order"],
    "4 shift": [f"positions.shift-{k}" for k in (1, 17, 500)],
    "5 mask and padding": [
        f"masks.{family}-{name}"
        for family in FAMILIES
        for name in ("past", "future", "padding", "width", "neighbours", "all-padding")
    ],
    "6 length penalty": ["decoding.penalty-gnmt", "decoding.penalty-power"],
    "7 parameters": ["parameters.base", "parameters.B.dk-quarter", "parameters.B.dk-half", "parameters.big"]
    + [f"parameters.C.{name}" for name in ("layers-third", "layers-2third", "layers-4third")]
    + [f"parameters.C.{name}" for name in ("width-half", "width-double", "ff-half", "ff-double")],
    "8 torch's Transformer": [f"torch.{n}-norm-{what}" for n in ("post", "pre") for what in ("outputs", "gradients")],
    "9 training cost": ["cost.paper-method-base", "cost.paper-method-big", "cost.counted-base"],
    "10 FLOPs": [f"flops.{family}-{way}" for family in FAMILIES for way in ("forward", "train")]
    + [f"flops.{family}-published-train" for family in FAMILIES],
    "11 batches": [
        f"search.{family}-{name}"
        for family in FAMILIES
        for name in ("batches-of-1", "batches-of-3", "batch-scores", "beam-1", "beam-4")
    ],
}


@pytest.mark.parametrize("vector", VECTORS)
def test_each_of_the_eleven_test_vectors_is_checked(vector: str) -> None:
    assert set(VECTORS[vector]) <= {claim.id for claim in CLAIMS}


def test_the_toys_end_some_translations_early_and_meet_the_cap_with_others() -> None:
    from repro.config import DecodeConfig

    for family in FAMILIES:
        found = beam_search(toy(family), padded(sentences(8, 7, seed=9)), DecodeConfig(extra_length=5))
        assert {hypothesis.capped for hypothesis in found} == {True, False}, family
        assert len({hypothesis.ids for hypothesis in found}) >= 4, family


def test_nothing_of_torchs_state_is_changed() -> None:
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    verify([claim for claim in CLAIMS if claim.id.startswith(("attention", "masks.lstm", "torch"))])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


# A broken product is caught.


def test_attention_that_forgets_to_scale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = Attention.mix

    def unscaled(self: Attention, *given: Any, **more: Any) -> Any:
        self.scale = 1.0
        return mix(self, *given, **more)

    monkeypatch.setattr(Attention, "mix", unscaled)
    found = failures("attention", "positions", "masks.transformer", "torch", "loss", "decoding")
    assert {"attention.weights", "attention.outputs", "attention.variance-64", "torch.post-norm-outputs"} <= found
    assert "attention.unscaled-weights" not in found
    assert groups(found) == {"attention", "torch"}


def test_attention_whose_fused_path_differs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda q, k, v, **more: attend(q, k, v * 1.001, **more))
    found = failures("attention.outputs", "attention.weights", "attention.paths")
    assert {"attention.outputs", "attention.paths-unmasked"} <= found
    assert "attention.weights" not in found


def test_a_decoder_that_sees_the_future_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *qkv, causal=False, **more: attend(*qkv, **more))
    found = failures("masks", "attention.paths", "search.transformer-incremental")
    assert {"masks.transformer-past", "attention.paths-causal", "search.transformer-incremental-states"} <= found
    assert "masks.lstm-past" not in found


def test_a_model_that_sees_padding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "key_mask", lambda mask: None)
    found = failures("masks", "torch")
    assert {"masks.transformer-padding", "masks.transformer-width", "torch.pre-norm-outputs"} <= found
    assert not any(id.startswith("masks.gnmt") for id in found)


def test_baselines_that_see_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "attention_weights", lambda scores, mask: scores.float().softmax(-1))
    found = failures("masks")
    assert {"masks.lstm-attention-width", "masks.gnmt-width", "masks.convs2s-width"} & found
    assert not any(id.startswith("masks.transformer") for id in found)


def test_a_source_read_past_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = recurrent.falling_lengths
    monkeypatch.setattr("repro.models.lstm.falling_lengths", lambda mask: falling(torch.ones_like(mask)))
    assert failures("masks.lstm-width") == {"masks.lstm-width"}


def test_another_embedding_for_the_softmax_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer, "project", lambda self, hidden: hidden @ self.embedding.t() * 16.0)
    assert failures("defaults") == {"defaults.softmax-unscaled"}


def test_another_layout_of_the_sinusoids_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sinusoids = positions.sinusoids
    monkeypatch.setattr(positions, "sinusoids", lambda length, width, layout: sinusoids(length, width, "concatenated"))
    found = failures("positions")
    assert {"positions.first-channels", "positions.formula-interleaved", "positions.shift-17"} <= found
    assert "positions.formula-concatenated" not in found


@pytest.mark.parametrize(
    ("where", "name", "broken", "caught"),
    [
        (penalty, "length_penalty", lambda kind, length, alpha: ((5 + length) / 5) ** alpha, "decoding.penalty-gnmt"),
        (penalty, "length_penalty", lambda kind, length, alpha: ((5 + length) / 6) ** alpha, "decoding.penalty-power"),
        (schedule, "learning_rate", lambda step, **_: 1e-3, "rate.peak"),
        (loss, "smoothing_targets", lambda *_: (0.9, 0.025), "loss.smoothing-uniform"),
        (loss, "smoothing_targets", lambda *_: (0.92, 0.02), "loss.smoothing-exclude-gold"),
        (parameters, "parameters", lambda *_: 65_000_000, "parameters.base"),
        (peaks, "paper_method_flops", lambda *given: math.prod(given) / 2, "cost.paper-method-base"),
        (flops, "BACKWARD_SHARE", 1, "cost.counted-base"),
    ],
)
def test_a_wrong_formula_is_caught(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, broken: Any, caught: str
) -> None:
    monkeypatch.setattr(where, name, broken)
    found = failures("attention.weights", "masks.lstm", "torch", "loss", "rate", "decoding", "parameters", "cost")
    assert caught in found
    assert groups(found) == groups([caught])


def test_a_smoothed_perplexity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = evaluation.smoothed_loss

    def smoothed(*given: Any, **more: Any) -> Any:
        found = honest(*given, **more | {"smoothing": 0.1})
        return loss.Loss(total=found.total, smoothed=found.smoothed, nll=found.smoothed)

    monkeypatch.setattr(evaluation, "smoothed_loss", smoothed)
    assert failures("loss") == {"loss.perplexity"}


def test_flops_without_the_backward_pass_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "BACKWARD_SHARE", 0)
    found = failures("flops.lstm-train", "flops.lstm-forward", "flops.transformer-pre-norm-train")
    assert {"flops.lstm-train", "flops.transformer-pre-norm-train"} <= found
    assert "flops.lstm-forward" not in found


def test_a_search_with_another_penalty_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam, "length_penalty", lambda kind, length, alpha: float(length) ** alpha)
    assert failures("search.lstm-scores") == {"search.lstm-scores"}


def test_a_search_that_forgets_to_reorder_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransformerState, "grow", lambda self: setattr(self, "position", self.position + 1))
    found = failures("search.transformer-beam-4", "search.transformer-incremental")
    assert {"search.transformer-beam-4", "search.transformer-incremental-states"} <= found


def test_a_decoder_state_that_loses_a_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Lstm.advance

    def forgetful(self: Lstm, pieces: torch.Tensor, state: Any) -> torch.Tensor:
        before = list(state.cells)
        hidden = advance(self, pieces, state)
        state.cells[0] = before[0]
        return hidden

    monkeypatch.setattr(Lstm, "advance", forgetful)
    found = failures("search.lstm-beam", "search.lstm-incremental", "search.lstm-batches")
    assert {"search.lstm-beam-1", "search.lstm-incremental-states"} <= found
    assert "search.lstm-batches-of-3" not in found


@pytest.mark.parametrize(
    ("owner", "name", "caught"),
    [
        (recurrent.LstmLayer, "to_ends", "baselines.lstm-layer"),
        (recurrent.BidirectionalLayer, "forward", "baselines.bidirectional-layer"),
        (additive, "additive_scores", "baselines.additive-scores"),
        (convs2s.NormedLinear, "forward", "baselines.gated-convolution"),
    ],
)
def test_a_baseline_that_is_off_by_a_thousandth_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, caught: str
) -> None:
    honest = getattr(owner, name)

    def off(*given: Any) -> Any:
        found = honest(*given)
        return (found[0] * 1.001, found[1]) if isinstance(found, tuple) else found * 1.001

    assert failures("baselines") == set()
    monkeypatch.setattr(owner, name, off)
    assert failures("baselines") == {caught}


def test_untied_embeddings_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Transformer.__init__

    def untied(self: Transformer, config: TransformerConfig, size: int) -> None:
        build(self, config, size)
        self.softmax = torch.nn.Parameter(torch.empty(size, config.d_model))

    monkeypatch.setattr(Transformer, "__init__", untied)
    parameters.parameters.cache_clear()
    try:
        found = failures("defaults", "parameters")
    finally:
        parameters.parameters.cache_clear()
    assert {"defaults.tied", "parameters.base", "parameters.big"} <= found


# Errors and values.


def claim(got: Callable[[], Any], expected: Any = 1) -> Claim:
    return equal("loss.x", "what", source="source", expected=expected, got=got)


def test_an_error_is_a_failed_check_that_tells_it() -> None:
    (check,) = verify([claim(lambda: 1 // 0)])
    assert (check.ok, check.expected, check.got) == (False, 1, "ZeroDivisionError: integer division or modulo by zero")
    (check,) = verify([claim(lambda: 1, expected=lambda: [][0])])
    assert (check.ok, check.expected, check.got) == (False, "?", "IndexError: list index out of range")


@pytest.mark.parametrize(
    ("made", "ok"),
    [
        (near("a.b", "", source="", expected=[1.0, [2.0]], got=lambda: [1.01, [1.99]], within=0.02), True),
        (near("a.b", "", source="", expected=[1.0, [2.0]], got=lambda: [1.01, [1.9]], within=0.02), False),
        (near("a.b", "", source="", expected=[1.0, 2.0], got=lambda: [1.0], within=0.02), False),
        (near("a.b", "", source="", expected=1.0, got=lambda: math.nan, within=0.02), False),
        (near("a.b", "", source="", expected=[], got=lambda: [], within=0.02), False),
        (at_most("a.b", "", source="", limit=1e-5, got=lambda: 1e-5), True),
        (at_most("a.b", "", source="", limit=1e-5, got=lambda: math.nan), False),
        (at_least("a.b", "", source="", limit=0.01, got=lambda: 0.02), True),
        (at_least("a.b", "", source="", limit=0.01, got=lambda: math.nan), False),
        (equal("a.b", "", source="", expected=[1, "x"], got=lambda: [1, "x"]), True),
        (equal("a.b", "", source="", expected=[1, "x"], got=lambda: [1, "y"]), False),
    ],
)
def test_what_counts_as_agreement(made: Claim, ok: bool) -> None:
    assert made.check().ok is ok


def test_values_fit_json_and_a_reader() -> None:
    assert plain([0.1234567891, math.nan, math.inf, 12, True, "x", (1e18, 2)]) == [
        0.1234568, "nan", "inf", 12, True, "x", [1e18, 2],
    ]  # fmt: skip
    assert proof.in_words([[1, 2.5], [3, 4]]) == "1 2.5; 3 4"
    assert proof.in_words(25_498_497_024) == "25 498 497 024"
    assert (proof.in_words(True), proof.in_words("at most 1e-05")) == ("yes", "at most 1e-05")


# The command.


def only(monkeypatch: pytest.MonkeyPatch, *claims: Claim) -> None:
    monkeypatch.setattr(suite, "CLAIMS", claims)


def test_a_table_gives_expected_got_source_and_verdict(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, *(claim for claim in CLAIMS if claim.id.startswith(("rate", "decoding.penalty"))))
    assert run(["verify"]) == 0
    told = capfd.readouterr()
    for word in ("expected", "got", "source", "verdict", "Learning rate", "4 000", "section 5.3", "ok", "-2.424"):
        assert word in told.out
    assert told.out.splitlines()[-1] == "all 5 checks hold: this installation computes what the paper says"
    assert told.err == ""


def test_a_failed_check_is_told_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, claim(lambda: 1), claim(lambda: 2), claim(lambda: {}["[bold]no markup"]))
    assert run(["verify"]) == 1
    told = capfd.readouterr().out
    assert "loss.x: expected 1, got 2 (what)" in told
    assert "got KeyError: '[bold]no markup'" in told
    assert told.splitlines()[-1].startswith("2 of 3 checks failed")


def test_a_failed_check_stands_in_the_document(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, claim(lambda: math.nan, expected=0.5))
    assert run(["verify", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document == {"checks": [{"id": "loss.x", "expected": 0.5, "got": "nan", "source": "source", "ok": False}]}
