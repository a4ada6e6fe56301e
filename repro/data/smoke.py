"""The smoke corpus: a small made-up language pair in which every source has exactly one translation.

The source side orders its clauses subject, verb, object and marks no case; the target side puts the verb at the clause
end and marks case. What a translator must get right, and where in a sentence the knowledge sits:

- words: each source word has its target word; `the`-words also need the noun's class, number and case;
- order: subject and object differ by nothing but their place, so a bag of source words does not tell them apart;
  an adjective moves before its noun, adverbs before the object, the verb to the clause end;
- agreement: the target verb agrees with its subject's class and number, over relative clauses, objects and
  adverbials, so the distance between the two varies from 1 to about 20 words;
- particles: a source particle at the clause end changes the meaning of its verb; its translation follows the
  subject in a main clause and stands before the verb in a subordinate one.

`generate` grows pairs from a synchronous grammar; `translate` reads a source by rules of its own. Neither uses the
other, and a test holds them against each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from repro.seeds import derive_seed

LANGUAGES = ("svo", "sov")
"""Names of the source and the target side, after their word order."""

SIZES = {"test": 500, "valid": 250, "train": 20_000}
"""Pairs of each split, in the order in which they are drawn; no source occurs twice, within or across splits."""

SHA256 = {
    "train.svo": "9d17bf144c61ca59fbad7c5daec256268846716347712d520a0771b28d9bdbeb",
    "train.sov": "dadb55c5ab1287ae490aa4f32070d92ffa0342805a84027fd3018b3504bb73fe",
    "valid.svo": "79496e8a67ca4bb5993656c30c7555d79459acc11159cb4f3e4a975900969563",
    "valid.sov": "3394857c645cd3cf40f8cb087e622781ae4aaffa42fd2b6b8b2967b427f1040b",
    "test.svo": "6443b45aa067bd19b93fc233978c3a7df2f259261eceeb8875efd2457da93edc",
    "test.sov": "4068090f14e81d58ecdc3111b034e217b05234cd56482f31ad1ff411d4cf74a3",
}
"""Of each file of the corpus: a change of the grammar is a change of the corpus, and is noticed."""

MAX_WORDS = 40
"""Most words of a source sentence."""

Agreement = Literal[0, 1, 2]
"""What articles, relative pronouns and verbs agree in: class 0 singular, class 1 singular, plural (2)."""

_NOUNS: dict[str, tuple[str, Literal[0, 1]]] = {  # source word: (target word, class)
    "bano": ("brak", 0), "dilu": ("drin", 1), "fero": ("flom", 0), "gami": ("grent", 1), "kelo": ("klup", 0),
    "lupa": ("lont", 1), "mero": ("mirk", 0), "nila": ("nast", 1), "pato": ("plem", 0), "rago": ("rusk", 1),
    "sulo": ("stil", 0), "tipa": ("trop", 1), "vemo": ("wenk", 0), "zuri": ("zarn", 1), "bori": ("bult", 0),
    "deka": ("dosk", 1), "fulo": ("fing", 0), "gosa": ("gald", 1), "kimu": ("knor", 0), "lano": ("lasp", 1),
}  # fmt: skip
_ADJECTIVES = {
    "aku": "olt",
    "emi": "isk",
    "ilo": "ent",
    "oru": "arg",
    "uba": "uld",
    "aste": "ipp",
    "elvi": "orm",
    "ompa": "aff",
}
_ADVERBS = {"shani": "heut", "shoru": "bald", "shemi": "gern", "shilo": "oft", "shuka": "dort"}
_PREPOSITIONS = {"wa": "bei", "we": "mit", "wo": "von"}
_INTRANSITIVE = {"tari": "schla", "tomu": "renno"}
_TRANSITIVE = {"chabi": "sehi", "chelu": "folgo", "chimo": "holda"}
_SEPARABLE = {
    "hirak": ("nimma", "luka"),
    "hobek": ("tragi", "zeho"),
    "hudik": ("gebo", "farti"),
}  # alone, with a particle
_SAYING = {"yanta": "sago", "yembo": "denki"}
_VERBS = (*_INTRANSITIVE, *_TRANSITIVE, *_SEPARABLE, *_SAYING)
_PLAIN_VERBS = _INTRANSITIVE | _TRANSITIVE | _SAYING
_PARTICLES = {"pu": "ab", "pi": "zu", "po": "ein"}
_DETERMINERS = {"ta": ("d", False), "ti": ("d", True), "na": ("m", False), "ni": ("m", True)}  # target stem, plural
_ARTICLE_ENDS = {"nominative": ("er", "ie", "o"), "accusative": ("en", "a", "um")}
_RELATIVE, _THAT = "ke", "se"
_COORDINATING = {"ya": "und", "yo": "aber", "yu": "oder"}
_SUBORDINATING = {"mako": "weil", "miku": "wenn", "muke": "obwo"}
_RELATIVES = ("welk", "welsa", "welu")
_CONJUNCTIONS = {_THAT: "dass"} | _COORDINATING | _SUBORDINATING
_VERB_ENDS = ("t", "s", "nen")

Case = Literal["nominative", "accusative"]
Words = list[str]


def generate(split: str) -> list[tuple[str, str]]:
    """The (source, translation) pairs of `split`: train, valid or test; always the same ones."""
    return list(_all_splits()[split])


@cache
def _all_splits() -> dict[str, list[tuple[str, str]]]:
    """Every split, drawn one after the other from one stream so that no source comes twice."""
    grammar = _Grammar(random.Random(derive_seed("smoke corpus", 1)))
    seen: set[str] = set()
    splits: dict[str, list[tuple[str, str]]] = {}
    for split, size in SIZES.items():
        pairs: list[tuple[str, str]] = []
        while len(pairs) < size:
            src, tgt = grammar.sentence()
            line = " ".join(src)
            if len(src) <= MAX_WORDS and line not in seen:
                seen.add(line)
                pairs.append((line, " ".join(tgt)))
        splits[split] = pairs
    return splits


def more() -> Iterator[tuple[str, str]]:
    """Further pairs without end, always the same ones, none of which stands in a split; they may be of any length."""
    grammar = _Grammar(random.Random(derive_seed("smoke corpus", "more", 1)))
    seen = {source for pairs in _all_splits().values() for source, _ in pairs}
    while True:
        src, tgt = grammar.sentence()
        line = " ".join(src)
        if line not in seen:
            seen.add(line)
            yield line, " ".join(tgt)


def swapped(count: int) -> Iterator[tuple[str, str]]:
    """`count` pairs of sources that differ in their order only: the one's subject is the other's object."""
    rng = random.Random(derive_seed("smoke corpus", "swapped", 1))
    grammar = _Grammar(rng)
    seen: set[str] = set()
    while len(seen) < count:
        (one, _, _), (other, _, _) = grammar.noun_phrase("nominative"), grammar.noun_phrase("accusative")
        verb = list(_TRANSITIVE)[int(rng.random() * len(_TRANSITIVE))]
        first, second = " ".join([*one, verb, *other]), " ".join([*other, verb, *one])
        if one != other and first not in seen and second not in seen:
            seen.add(first)
            yield first, second


def distance_class(source: str) -> str:
    """The class of the largest distance between a subject and its verb in the translation of `source`."""
    return _distance_class(max(word.distance for word in explain(source) if word.kind == "verb"))


class _Grammar:
    """Grows source and target of one sentence side by side; each method returns both."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _one(self, words: Sequence[str]) -> str:
        # Only random() is drawn: its values are the same in every Python version.
        return words[int(self._rng.random() * len(words))]

    def sentence(self) -> tuple[Words, Words]:
        """Clauses in a chain: the first and those after "and" words are main clauses, the others subordinate."""
        src, tgt, says = self._clause(main=True)
        while says or self._chance(0.15):
            joint = _THAT if says else self._one([*_COORDINATING, *_SUBORDINATING])
            clause_src, clause_tgt, says = self._clause(main=joint in _COORDINATING)
            src = [*src, joint, *clause_src]
            tgt = [*tgt, _CONJUNCTIONS[joint], *clause_tgt]
        return src, tgt

    def _clause(self, main: bool) -> tuple[Words, Words, bool]:
        src, tgt, agreement = self.noun_phrase("nominative")
        if self._chance(0.16):
            inner_src, inner_tgt, _ = self._verb_phrase(agreement, main=False, may_say=False)
            src = [*src, _RELATIVE, *inner_src]
            tgt = [*tgt, _RELATIVES[agreement], *inner_tgt]
        verb_src, verb_tgt, says = self._verb_phrase(agreement, main, may_say=True)
        return src + verb_src, tgt + verb_tgt, says

    def noun_phrase(self, case: Case) -> tuple[Words, Words, Agreement]:
        """Determiner, noun, and now and then an adjective."""
        determiner, noun = self._one(list(_DETERMINERS)), self._one(list(_NOUNS))
        adjective = [self._one(list(_ADJECTIVES))] if self._chance(0.25) else []
        stem, plural = _DETERMINERS[determiner]
        noun_tgt, noun_class = _NOUNS[noun]
        agreement: Agreement = 2 if plural else noun_class
        article = stem + _ARTICLE_ENDS[case][agreement]
        tgt = [article, *(_ADJECTIVES[word] for word in adjective), noun_tgt]
        return [determiner, noun, *adjective], tgt, agreement

    def _verb_phrase(self, agreement: Agreement, main: bool, may_say: bool) -> tuple[Words, Words, bool]:
        if may_say and self._chance(0.1):
            verb = self._one(list(_SAYING))
            return [verb], [_SAYING[verb] + _VERB_ENDS[agreement]], True
        verb = self._one([*_INTRANSITIVE, *_TRANSITIVE, *_SEPARABLE])
        src, late = [verb], list[str]()
        if verb not in _INTRANSITIVE:
            object_src, object_tgt, _ = self.noun_phrase("accusative")
            src, late = src + object_src, late + object_tgt
        if self._chance(0.16):
            preposition = self._one(list(_PREPOSITIONS))
            place_src, place_tgt, _ = self.noun_phrase("accusative")
            src, late = [*src, preposition, *place_src], [*late, _PREPOSITIONS[preposition], *place_tgt]
        if self._chance(0.2):
            adverb = self._one(list(_ADVERBS))
            src, late = [*src, adverb], [_ADVERBS[adverb], *late]
        particle = self._one(list(_PARTICLES)) if verb in _SEPARABLE and self._chance(0.6) else ""
        if particle:
            src = [*src, particle]
            late = [_PARTICLES[particle], *late] if main else [*late, _PARTICLES[particle]]
        stem = _SEPARABLE[verb][bool(particle)] if verb in _SEPARABLE else (_INTRANSITIVE | _TRANSITIVE)[verb]
        return src, [*late, stem + _VERB_ENDS[agreement]], False


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a translation, with what it is tested for."""

    text: str
    kind: Literal["verb", "particle", "other"] = "other"
    distance: int = 0
    """Of a verb: how many words its subject's noun (or relative pronoun) stands before it."""


def translate(source: str) -> str:
    """The one right translation of `source`. Raises ValueError when `source` is no sentence of the language."""
    return " ".join(word.text for word in explain(source))


def explain(source: str) -> list[Word]:
    """The words of the translation of `source`, verbs and particles marked."""
    return _Reader(source.split(" ")).sentence()


class _Reader:
    """Reads a source sentence from left to right and translates it, one rule a method."""

    def __init__(self, words: Words) -> None:
        self._words, self._next = words, 0

    def _peek(self) -> str:
        return self._words[self._next] if self._next < len(self._words) else ""

    def _take(self, known: Iterable[str]) -> str:
        word = self._peek()
        if word not in known:
            sentence = " ".join(self._words)
            raise ValueError(f"word {self._next + 1} of {sentence!r} is {word!r}, expected one of {', '.join(known)}")
        self._next += 1
        return word

    def sentence(self) -> list[Word]:
        """All clauses; what follows an "and" word is a main clause, what follows "that" or a "because" word is not."""
        words, says = self._clause(main=True)
        while says or self._peek():
            joint = self._take([_THAT] if says else [*_COORDINATING, *_SUBORDINATING])
            clause, says = self._clause(main=joint in _COORDINATING)
            words += [Word(_CONJUNCTIONS[joint]), *clause]
        return words

    def _clause(self, main: bool) -> tuple[list[Word], bool]:
        subject, agreement = self._noun_phrase("nominative")
        words = subject
        if self._peek() == _RELATIVE:
            self._take([_RELATIVE])
            pronoun = [Word(_RELATIVES[agreement])]
            inner, _ = self._predicate(pronoun, agreement, main=False, gap=0)
            words = words + inner
        return self._predicate(words, agreement, main, gap=len(words) - len(subject))

    def _predicate(self, subject: list[Word], agreement: Agreement, main: bool, gap: int) -> tuple[list[Word], bool]:
        """`subject` and the rest of its clause; `gap` words of `subject` stand after its noun."""
        verb = self._take(_VERBS)
        objects = [] if verb in _INTRANSITIVE or verb in _SAYING else self._noun_phrase("accusative")[0]
        if self._peek() in _PREPOSITIONS:
            preposition = Word(_PREPOSITIONS[self._take(_PREPOSITIONS)])
            objects = [*objects, preposition, *self._noun_phrase("accusative")[0]]
        adverb = [Word(_ADVERBS[self._take(_ADVERBS)])] if self._peek() in _ADVERBS else []
        particle: list[Word] = []
        if verb in _SEPARABLE and self._peek() in _PARTICLES:
            particle = [Word(_PARTICLES[self._take(_PARTICLES)], "particle")]
        between = [*particle, *adverb, *objects] if main else [*adverb, *objects, *particle]
        stem = _SEPARABLE[verb][len(particle)] if verb in _SEPARABLE else _PLAIN_VERBS[verb]
        last = Word(stem + _VERB_ENDS[agreement], "verb", distance=gap + len(between) + 1)
        return [*subject, *between, last], verb in _SAYING

    def _noun_phrase(self, case: Case) -> tuple[list[Word], Agreement]:
        stem, plural = _DETERMINERS[self._take(_DETERMINERS)]
        noun, noun_class = _NOUNS[self._take(_NOUNS)]
        adjective = [Word(_ADJECTIVES[self._take(_ADJECTIVES)])] if self._peek() in _ADJECTIVES else []
        agreement: Agreement = 2 if plural else noun_class
        return [Word(stem + _ARTICLE_ENDS[case][agreement]), *adjective, Word(noun)], agreement


_VERB_FORMS = {
    stem + end: end
    for stem in (*_PLAIN_VERBS.values(), *(s for pair in _SEPARABLE.values() for s in pair))
    for end in _VERB_ENDS
}
"""Every target verb form, with the ending that shows its agreement."""

_DISTANCES = ((1, 2), (3, 5), (6, 9), (10, MAX_WORDS))
"""The classes of distance between subject and verb by which agreement is reported."""


def analyse(sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """What hypotheses get right: whole sentences, agreement by distance, particles.

    - `exact_match`: share of lines equal to their reference.
    - `agreement_by_distance`: per class of distance between subject and verb ("1-2", ...), the share of verbs whose
      ending is right. The k-th verb of a hypothesis is held against the k-th of the translation; a missing one is
      wrong, another verb with the right ending is right. Classes without verbs are left out.
    - `particle_accuracy`: the same for particles, which must be the right word and stand the
      right number of words before their verb. None without particles.
    - `counts`: how many sentences, verbs (by class) and particles these shares are of.

    Lists of unequal length raise ValueError, and so does a source that is no sentence of the language.
    """
    agreement: dict[str, list[bool]] = {}
    particles: list[bool] = []
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        expected, words = explain(source), hypothesis.split()
        endings = [_VERB_FORMS[word] for word in words if word in _VERB_FORMS]
        for number, verb in enumerate(word for word in expected if word.kind == "verb"):
            right = number < len(endings) and endings[number] == _VERB_FORMS[verb.text]
            agreement.setdefault(_distance_class(verb.distance), []).append(right)
        found = _placed_particles(words)
        for number, particle in enumerate(_placed_particles([word.text for word in expected])):
            particles.append(number < len(found) and found[number] == particle)
    exact = [hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True)]
    shares = {name: agreement[name] for name in map(_name, _DISTANCES) if name in agreement}
    return {
        "exact_match": _share(exact),
        "agreement_by_distance": {name: _share(right) for name, right in shares.items()},
        "particle_accuracy": _share(particles),
        "counts": {
            "sentences": len(exact),
            "verbs_by_distance": {name: len(right) for name, right in shares.items()},
            "particles": len(particles),
        },
    }


def _placed_particles(words: Sequence[str]) -> list[tuple[str, int]]:
    """Each particle of a translation and how many words its clause's verb stands after it (0: there is none)."""
    places = []
    for place, word in enumerate(words):
        if word in _PARTICLES.values():
            later = (distance for distance, other in enumerate(words[place:]) if other in _VERB_FORMS)
            places.append((word, next(later, 0)))
    return places


def _distance_class(distance: int) -> str:
    return next(_name(limits) for limits in _DISTANCES if limits[0] <= distance <= limits[1] or limits[1] >= MAX_WORDS)


def _name(limits: tuple[int, int]) -> str:
    return f"{limits[0]}-{limits[1]}" if limits[1] < MAX_WORDS else f"{limits[0]}+"


DISTANCES = tuple(map(_name, _DISTANCES))
"""The names of the classes, the shortest distance first."""


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
