"""The smoke language: one right translation, order that matters, distances, a long tail."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from repro.data import smoke

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[tuple[str, str]]]:
    return {split: smoke.generate(split) for split in SPLITS}


def test_a_sentence_translated_by_hand() -> None:
    # the (plural) noun adjective | verb | a noun | with the noun | adverb | particle: the last changes the verb
    source = "ti bano aku hirak na gami we ta dilu shemi pu"
    # articles: class 0 er/en, class 1 ie/a, plural o/um; the adjective before its noun; the verb last, in the plural
    assert smoke.translate(source) == "do olt brak ab gern ma grent mit da drin lukanen"
    # the same clause after "because": the particle stands before the verb
    assert smoke.translate(f"ta fero tari mako {source}") == (
        "der flom schlat weil do olt brak gern ma grent mit da drin ab lukanen"
    )


def test_a_relative_clause_agrees_with_its_head_and_so_does_the_main_verb() -> None:
    assert smoke.translate("ta nila ke chabi ni pato tomu") == "die nast welsa mum plem sehis rennos"


def test_swapping_subject_and_object_changes_the_translation_but_no_source_word() -> None:
    one, other = "ta bano chabi ta fero", "ta fero chabi ta bano"
    assert Counter(one.split()) == Counter(other.split())
    assert smoke.translate(one) == "der brak den flom sehit"
    assert smoke.translate(other) == "der flom den brak sehit"


def test_every_generated_pair_is_what_the_reader_translates(splits: dict[str, list[tuple[str, str]]]) -> None:
    for pairs in splits.values():
        assert [smoke.translate(source) for source, _ in pairs] == [target for _, target in pairs]


def test_no_source_comes_twice_within_or_across_splits(splits: dict[str, list[tuple[str, str]]]) -> None:
    sources = [source for pairs in splits.values() for source, _ in pairs]
    assert len(sources) == len(set(sources)) == 20_000 + 250 + 500


def test_most_sentences_are_short_and_some_are_long(splits: dict[str, list[tuple[str, str]]]) -> None:
    lengths = sorted(len(source.split()) for source, _ in splits["test"])
    assert lengths[0] == 3
    assert 6 <= lengths[250] <= 11
    assert 15 <= lengths[475] <= 28
    assert 30 < lengths[-1] <= 40


def test_words_are_few_and_no_word_is_on_both_sides(splits: dict[str, list[tuple[str, str]]]) -> None:
    src, tgt = ({word for pair in splits["train"] for word in pair[side].split()} for side in (0, 1))
    assert 40 <= len(src) <= 100
    assert 60 <= len(tgt) <= 110
    assert not src & tgt


def test_every_word_of_the_test_split_is_in_the_training_split(splits: dict[str, list[tuple[str, str]]]) -> None:
    for side in (0, 1):
        known = {word for pair in splits["train"] for word in pair[side].split()}
        assert {word for pair in splits["test"] for word in pair[side].split()} <= known


def test_a_bag_of_words_cannot_tell_the_translation(splits: dict[str, list[tuple[str, str]]]) -> None:
    """Among sources of the same words there are several translations: the best guess from a bag is often wrong."""
    bags: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for source, target in splits["train"]:
        bags[tuple(sorted(source.split()))].add(target)
    assert sum(len(targets) > 1 for targets in bags.values()) > 100
    changed = 0
    transitive = [source for source, _ in splits["test"] if len(source.split()) == 5 and source.split()[2] != "ke"]
    for source in transitive:
        words = source.split()
        try:
            swapped = smoke.translate(" ".join([*words[3:], words[2], *words[:2]]))
        except ValueError:
            continue
        changed += swapped != smoke.translate(source)
    assert changed > 10


def test_the_text_is_the_same_in_every_process() -> None:
    code = (
        "import hashlib\nfrom repro.data import smoke\n"
        "print(hashlib.sha256(repr([smoke.generate(s) for s in ('train', 'valid', 'test')]).encode()).hexdigest())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_the_text_is_the_recorded_one(splits: dict[str, list[tuple[str, str]]]) -> None:
    for split in SPLITS:
        for side, language in enumerate(smoke.LANGUAGES):
            text = "".join(f"{pair[side]}\n" for pair in splits[split])
            assert hashlib.sha256(text.encode()).hexdigest() == smoke.SHA256[f"{split}.{language}"]


def test_a_sentence_outside_the_language_is_refused_with_the_word() -> None:
    with pytest.raises(ValueError, match=r"word 3 of 'ta bano bano' is 'bano'"):
        smoke.translate("ta bano bano")
    with pytest.raises(ValueError, match="word 5"):
        smoke.translate("ta bano chabi ta")


def test_the_references_score_full_marks(splits: dict[str, list[tuple[str, str]]]) -> None:
    sources, references = (list(side) for side in zip(*splits["test"], strict=True))
    found = smoke.analyse(sources, references, references)
    assert found["exact_match"] == found["particle_accuracy"] == 1.0
    assert set(found["agreement_by_distance"]) == {"1-2", "3-5", "6-9", "10+"}
    assert set(found["agreement_by_distance"].values()) == {1.0}
    assert found["counts"]["sentences"] == 500
    assert min(found["counts"]["verbs_by_distance"].values()) >= 20
    assert found["counts"]["particles"] >= 100


def test_analysis_counts_what_is_wrong_and_where() -> None:
    sources = ["ta bano tari", "ta bano chabi na gami we ta dilu", "ti bano hirak na gami pu"]
    references = ["der brak schlat", "der brak ma grent mit da drin sehit", "do brak ab ma grent lukanen"]
    assert [smoke.translate(source) for source in sources] == references
    hypotheses = [
        "der brak schlat",  # distance 1: right
        "der brak ma grent mit da drin sehis",  # distance 6: wrong ending
        "do brak ma grent ab lukanen",  # distance 4: right ending, particle misplaced
    ]
    found = smoke.analyse(sources, references, hypotheses)
    assert found["exact_match"] == pytest.approx(1 / 3)
    assert found["agreement_by_distance"] == {"1-2": 1.0, "3-5": 1.0, "6-9": 0.0}
    assert found["particle_accuracy"] == 0.0


def test_an_empty_hypothesis_is_wrong_and_breaks_nothing() -> None:
    found = smoke.analyse(["ti bano hirak na gami pu"], ["do brak ab ma grent lukanen"], [""])
    assert found["exact_match"] == 0.0
    assert found["agreement_by_distance"] == {"3-5": 0.0}
    assert found["particle_accuracy"] == 0.0


def test_lists_out_of_step_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        smoke.analyse(["ta bano tari"], ["der brak schlat"], [])
