"""Beam search of this project, of CTranslate2 and of `transformers` with the same weights, on the same batches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from repro.bench.clock import Clock
from repro.bench.conversion import ctranslate2_translator, marian_model
from repro.bench.packages import build_system, installed
from repro.bench.shapes import Shape
from repro.config import DecodeConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.decoding.beam import BeamSearch
from repro.decoding.translate import batches_by_length, padded
from repro.errors import UsageError
from repro.models.build import build_model
from repro.models.transformer import DecoderLayer, Transformer
from repro.training.device import device_name

BEAM = 4
ALPHA = 0.0
"""No length penalty: with one, the three define different searches and stop at different times."""

Tell = Callable[[str], None]
Pieces = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What every system translates, and with which weights."""

    name: str
    model: Transformer
    """In evaluation mode on the CPU."""
    sources: Sequence[Sequence[int]]
    """Pieces without the end mark."""
    config: DecodeConfig
    unending: bool = False
    """The model never says the end mark: each translation is as long as the longest source of its batch."""

    def batches(self) -> list[list[int]]:
        """Indices into `sources` of similar length, bounded in tokens."""
        return list(batches_by_length([len(source) for source in self.sources], self.config))

    def cap(self, batch: Sequence[int]) -> int:
        """Most pieces of a translation in `batch`, end mark included."""
        longest = max(len(self.sources[index]) for index in batch)
        return longest if self.unending else longest + self.config.extra_length

    @property
    def positions(self) -> int:
        """Most pieces on either side, both marks counted."""
        return max(len(source) for source in self.sources) + self.config.extra_length + 2


def of_model(name: str, model: Transformer, sources: Sequence[Sequence[int]], config: DecodeConfig) -> Work:
    """The sentences `sources`, blank ones left out, with a trained model; `config` tells lengths and batches."""
    searched = DecodeConfig(beam=BEAM, alpha=ALPHA, extra_length=config.extra_length, batch_tokens=config.batch_tokens)
    kept = [list(source) for source in sources if len(source) > 0]
    return Work(name=name, model=model.cpu().eval(), sources=kept, config=searched)


def of_shape(shape: Shape, sentences: int) -> Work:
    """Drawn sentences of `shape` with random weights, under which the end mark is never likely."""
    text = shape.text()
    model = build_model(shape.model, shape.vocabulary_size, seed=1)
    assert isinstance(model, Transformer)
    last = model.decoder[-1]
    assert isinstance(last, DecoderLayer)
    with torch.no_grad():  # one direction that every state has in it, and that the end mark alone stands against
        last.feed_forward_frame.norm.bias[0] = 10.0
        model.embedding[EOS] = 0.0
        model.embedding[EOS, 0] = -100.0
    sources = [text.src(index).tolist() for index in range(min(sentences, len(text)))]
    config = DecodeConfig(beam=BEAM, alpha=ALPHA)
    return Work(name=shape.name, model=model.eval(), sources=sources, config=config, unending=True)


class System(Protocol):
    """One way to translate a batch."""

    def translate(self, batch: Sequence[int]) -> list[Pieces]:
        """The best translation of each source of `batch`, without the end mark."""


class Ours:
    """This project's search, as a run uses it."""

    def __init__(self, work: Work) -> None:
        self._work, self._searcher = work, BeamSearch(work.model, work.config)

    def translate(self, batch: Sequence[int]) -> list[Pieces]:
        """The best translation of each source of `batch`, without the end mark."""
        caps = [self._work.cap(batch)] * len(batch)
        found = self._searcher.search(padded([self._work.sources[index] for index in batch]), caps)
        return [hypothesis.ids for hypothesis in found]


class CTranslate2:
    """CTranslate2 in float32 and one thread."""

    def __init__(self, work: Work) -> None:
        self._work, self._translator = work, ctranslate2_translator(work.model, work.positions)

    def translate(self, batch: Sequence[int]) -> list[Pieces]:
        """The best translation of each source of `batch`, without the end mark."""
        found = self._translator.translate_batch(
            [[str(piece) for piece in (*self._work.sources[index], EOS)] for index in batch],
            beam_size=BEAM,
            length_penalty=ALPHA,
            max_input_length=0,
            max_decoding_length=self._work.cap(batch),
            min_decoding_length=0,
            disable_unk=True,
            suppress_sequences=[[str(PAD)], [str(BOS)]],
        )
        return [tuple(int(piece) for piece in result.hypotheses[0]) for result in found]


class Generate:
    """`generate` of the Marian model of `transformers`."""

    def __init__(self, work: Work) -> None:
        self._work, self._model = work, marian_model(work.model, work.positions)

    def translate(self, batch: Sequence[int]) -> list[Pieces]:
        """The best translation of each source of `batch`, without the end mark."""
        src = padded([self._work.sources[index] for index in batch])
        with torch.inference_mode():
            found = self._model.generate(
                src,
                attention_mask=(src != PAD).long(),
                num_beams=BEAM,
                length_penalty=ALPHA,
                early_stopping=False,
                do_sample=False,
                max_new_tokens=self._work.cap(batch),
            )
        return [_until_end(row[1:]) for row in found.tolist()]


def _until_end(row: list[int]) -> Pieces:
    ends = [place for place, piece in enumerate(row) if piece in (EOS, PAD)]
    return tuple(row[: ends[0]] if ends else row)


SYSTEMS: dict[str, Callable[[Work], System]] = {
    "ours": Ours,
    "ctranslate2": CTranslate2,
    "generate": Generate,
}
"""By the name that tables give them; the first is this project."""

_PACKAGES = {"ctranslate2": "ctranslate2", "generate": "transformers"}


def available() -> list[str]:
    """The systems that this installation can time."""
    return [name for name in SYSTEMS if name not in _PACKAGES or installed(_PACKAGES[name])]


def build(name: str, work: Work) -> System:
    """The system called `name` for `work`; errors as `build_system`'s."""
    return build_system(name, SYSTEMS, _PACKAGES, work)


def measure(work: Work, names: Sequence[str], *, rounds: int = 3, tell: Tell = lambda _: None) -> dict[str, Any]:
    """The document of one work: what each system of `names` translates in a second of one core.

    A round is the same batches once through every system, one system after the other; its medians over `rounds` follow
    a round that warms up. The seconds are the process's own: other work on the machine shows less. `same_outputs` is
    the share of sentences that get the same pieces from a system as from the first of `names`.
    """
    if not work.sources:
        raise UsageError("there are no sentences to translate", where=work.name, fix="raise --sentences")
    systems = {name: build(name, work) for name in names}
    batches, clock = work.batches(), Clock(torch.device("cpu"))
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    outputs: dict[str, list[Pieces]] = {}
    for turn in range(rounds + 1):
        for name, system in systems.items():
            tell(f"{f'round {turn} of {rounds}' if turn else 'warming up'}: {name}")
            with clock:
                outputs[name] = [pieces for batch in batches for pieces in system.translate(batch)]
            if turn:
                seconds[name].append(clock.seconds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first, count = names[0], len(work.sources)
    return {
        "work": work.name,
        "device": device_name(torch.device("cpu")),
        "precision": "fp32",
        "beam": BEAM,
        "alpha": ALPHA,
        "sentences": count,
        "batches": len(batches),
        "systems": [
            {
                "system": name,
                "sentences_per_second": count / median,
                "target_tokens_per_second": sum(len(pieces) for pieces in outputs[name]) / median,
                "seconds": seconds[name],
                "times_slower": median / medians[first],
                "same_outputs": sum(a == b for a, b in zip(outputs[name], outputs[first], strict=True)) / count,
            }
            for name, median in medians.items()
        ],
    }
