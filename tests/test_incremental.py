"""Decoding piece by piece against the whole prefix run anew, whatever the options, the beam and who leaves when."""

from __future__ import annotations

import dataclasses
import itertools
import random
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_toys import CONFIGS, FAMILIES
from decoding_toys import padded
from test_beam import plain_beam, rerun

from repro.config import DecodeConfig, TransformerConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.decoding.beam import BeamSearch, Hypothesis, beam_search
from repro.models import linear
from repro.models.build import build_model
from repro.models.prepared import PreparedLinear
from repro.models.seq2seq import Seq2Seq

torch.set_num_threads(1)

VOCABULARY, POSITIONS = 30, 40
WIDTHS: tuple[dict[str, Any], ...] = ({}, {"d_k": 3, "d_v": 5}, {"d_k": 7, "d_v": 2})
OPTIONS = list(
    itertools.product(("post", "pre"), ("sinusoidal", "learned", "none"), WIDTHS, *itertools.repeat((True, False), 3))
)
EVERY = {**CONFIGS, **FAMILIES}
"""Every family, and the options of some that change what its state holds."""
Model = Seq2Seq[Any, Any]


def transformer(seed: int, **changes: Any) -> Any:
    """Random, with no weight at zero, and with larger embeddings, so that translations differ and some end."""
    sizes = {"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 2, "max_positions": POSITIONS}
    model = build_model(TransformerConfig(**(sizes | changes)), VOCABULARY, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        model.get_parameter("embedding").mul_(3.0)
    return model.eval()


def drawn_sources(rng: random.Random, count: int, longest: int = 9) -> list[list[int]]:
    lengths = [rng.choice((0, 1, rng.randint(1, longest))) for _ in range(count)]
    return [[rng.randrange(4, VOCABULARY) for _ in range(length)] for length in lengths]


class Followed:
    """A state that is taken through drawn pieces and reorderings, beside a record of every hypothesis's pieces."""

    def __init__(self, model: Model, sources: list[list[int]], beam: int, rng: random.Random) -> None:
        self.model, self.rng, self.src = model, rng, padded(sources)
        self.state = model.start(model.encode(self.src, self.src != PAD), beam)
        self.sentences = list(range(len(sources)))
        self.prefixes: list[list[tuple[int, ...]]] = [[()] * beam for _ in sources]

    def advance(self) -> torch.Tensor:
        """Hidden states after one more drawn piece each, which may be any but begins with the start mark."""
        first = not self.prefixes[0][0]
        least, most = (BOS, BOS) if first else (0, VOCABULARY - 1)
        self.prefixes = [[(*prefix, self.rng.randint(least, most)) for prefix in row] for row in self.prefixes]
        pieces = torch.tensor([prefix[-1] for row in self.prefixes for prefix in row])
        hidden: torch.Tensor = self.model.advance(pieces, self.state)
        return hidden

    def anew(self) -> torch.Tensor:
        """The same by running the encoder and every whole prefix."""
        beam = len(self.prefixes[0])
        src = self.src[self.sentences].repeat_interleave(beam, 0)
        tgt_in = torch.tensor([prefix for row in self.prefixes for prefix in row])
        hidden: torch.Tensor = self.model.decode(tgt_in, self.model.encode(src, src != PAD))[:, -1]
        return hidden

    def reorder(self) -> None:
        """Half of the time some sentences leave, now and then the others change places; any slot may be continued."""
        count, beam = len(self.sentences), len(self.prefixes[0])
        kept = list(range(count))
        chance = self.rng.random()
        if chance < 0.5:
            kept = sorted(self.rng.sample(kept, self.rng.randint(max(1, count // 2), count)))
        elif chance < 0.6:
            self.rng.shuffle(kept)
        beams = [[self.rng.randrange(beam) for _ in range(beam)] for _ in kept]
        self.state.reorder(torch.tensor(kept), torch.tensor(beams))
        self.sentences = [self.sentences[row] for row in kept]
        self.prefixes = [[self.prefixes[row][b] for b in chosen] for row, chosen in zip(kept, beams, strict=True)]


def largest_difference(model: Model, seed: int, count: int, beam: int, steps: int, every: int = 1) -> float:
    """Between decoding piece by piece and running prefixes anew, after each of `steps` that `every` divides."""
    rng = random.Random(seed)
    with torch.inference_mode():
        followed = Followed(model, drawn_sources(rng, count), beam, rng)
        worst = torch.zeros(())
        for step in range(1, steps + 1):
            hidden = followed.advance()
            if step % every == 0:
                worst = torch.maximum(worst, (hidden - followed.anew()).abs().max())  # NaN stays
            followed.reorder()
    return float(worst)


# -- the Transformer's cache ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_every_option_a_piece_more_is_as_the_prefix_run_anew(norm: str, dtype: torch.dtype) -> None:
    bound = 1e-4 if dtype == torch.float32 else 1e-10
    for number, (this, positions, widths, scaled, causal, bias) in enumerate(OPTIONS):
        if this != norm:
            continue
        options = {"scale_attention": scaled, "causal_mask": causal, "attention_bias": bias}
        model = transformer(number, norm=norm, positions=positions, n_heads=(1, 4)[number % 2], **widths, **options)
        model.to(dtype)
        for layer in model.decoder:
            layer.causal = True  # trained without the mask or with it, a search has no later pieces to show
        count, beam = random.Random(number).choice([(1, 4), (2, 1), (5, 7), (8, 2)])
        assert largest_difference(model, number, count, beam, 8, every=3) < bound, (norm, positions, widths, options)


@pytest.fixture
def nothing_is_zero_by_chance() -> Iterator[None]:
    """Memory that was not written holds NaN."""
    fill: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    kept = fill.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    fill.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)
    fill.fill_uninitialized_memory = kept


@pytest.mark.parametrize(("count", "beam"), [(8, 3), (6, 1), (1, 5)])
def test_the_cache_grows_and_no_slot_is_read_before_it_is_written(
    count: int, beam: int, nothing_is_zero_by_chance: None
) -> None:
    assert torch.empty(2).isnan().all()
    assert largest_difference(transformer(2, d_k=5, d_v=3), 4, count, beam, 140, every=20) < 1e-4


def test_learned_positions_serve_to_their_last_row() -> None:
    model = transformer(5, positions="learned")
    assert largest_difference(model, 1, 4, 3, POSITIONS, every=8) < 1e-4
    with torch.no_grad():
        model.embedding[EOS] = 0.0  # never the likeliest
    (found,) = beam_search(model, padded([[5] * (POSITIONS - 1)]), DecodeConfig(beam=1, extra_length=50))
    assert (len(found.ids), found.capped) == (POSITIONS, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "d_k": 3, "d_v": 5},
        {"positions": "none", "scale_attention": False},
        {"positions": "learned", "causal_mask": False},
    ],
)
@pytest.mark.parametrize("beam", [2, VOCABULARY + 5])
def test_searches_of_every_option_find_what_a_plain_search_finds(changes: dict[str, Any], beam: int) -> None:
    """A beam wider than the vocabulary has slots that hold nothing after the first piece."""
    model, sources = transformer(7, **changes), [[9, 8, 7, 6, 5], [5], [11, 12, 4], [6, 6, 7, 21, 22, 23, 24]]
    caps = [5, 1, 3, 4]
    found = beam_search(model, padded(sources), DecodeConfig(beam=beam), caps=caps)
    for layer in model.decoder:
        layer.causal = True
    for source, cap, hypothesis in zip(sources, caps, found, strict=True):
        ids, score, capped = plain_beam(rerun(model, source), beam, cap, "gnmt", 0.6)
        assert (hypothesis.ids, hypothesis.capped) == (ids, capped)
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


def test_a_model_with_dropout_that_was_training_is_searched_without() -> None:
    model = transformer(8, dropout=0.5, attention_dropout=0.5, activation_dropout=0.5)
    src = padded([[5, 6, 7], [8]])
    evaluated = beam_search(model, src, DecodeConfig())
    assert beam_search(model.train(), src, DecodeConfig()) == evaluated
    assert model.training


@pytest.mark.parametrize("family", sorted(EVERY))
def test_a_state_of_one_hypothesis_a_sentence_is_spread_over_a_beam(family: str) -> None:
    """After one piece, as a search does it, and after more than a first stretch of the cache holds."""
    model = build_model(EVERY[family], VOCABULARY, 3).eval()
    for steps, beam in ((1, 4), (21, 3)):
        with torch.inference_mode():
            followed = Followed(model, [[5, 6, 7], [8], [9, 10]], 1, random.Random(steps))
            for _ in range(steps):
                followed.advance()
            followed.state.reorder(torch.tensor([0, 2]), torch.zeros(2, beam, dtype=torch.int64))
            followed.sentences = [0, 2]
            followed.prefixes = [[followed.prefixes[row][0]] * beam for row in (0, 2)]
            for _ in range(5):
                assert float((followed.advance() - followed.anew()).abs().max()) < 1e-4
                followed.reorder()


# -- every family -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(EVERY))
def test_every_family_follows_leaving_and_reordered_sentences(family: str) -> None:
    model = build_model(EVERY[family], VOCABULARY, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 if family.startswith("convs2s") else 2.0)
    for seed, (count, beam) in enumerate([(8, 3), (1, 4), (5, 1)]):
        assert largest_difference(model.eval(), seed, count, beam, 12, every=2) < 1e-4


def large(family: str) -> tuple[Model, list[list[int]]]:
    """Wide enough that a single sentence's products lie under and eight sentences' over what goes to oneDNN."""
    vocabulary, rng = 3000, random.Random(5)
    width = {"transformer": "d_model", "lstm-attention": "d_out", "convs2s": "d_out"}.get(family, "d_hidden")
    changes: dict[str, Any] = {width: 96}
    model = build_model(dataclasses.replace(FAMILIES[family], **changes), vocabulary, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_({"lstm-attention": 3.0}.get(family, 1.5))
    return model, [[rng.randrange(4, vocabulary) for _ in range(length)] for length in (1, 25, 3, 7, 2, 31, 12, 5)]


def in_parts(model: Model, sources: list[list[int]], size: int, beam: int) -> list[Hypothesis]:
    config, starts = DecodeConfig(beam=beam, extra_length=6), range(0, len(sources), size)
    return [h for at in starts for h in beam_search(model, padded(sources[at : at + size]), config)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beam", [1, 4])
def test_batches_of_one_three_and_eight_agree_where_products_change_the_library(family: str, beam: int) -> None:
    model, sources = large(family)
    one_row, eight = beam * 96 * 3000, 8 * beam * 96 * 3000
    assert one_row < 1.2 * linear.WORTH < eight
    whole = in_parts(model, sources, 8, beam)
    assert len({hypothesis.ids for hypothesis in whole}) > 4
    for size in (1, 3):
        found = in_parts(model, sources, size, beam)
        assert [(a.ids, a.capped) for a in found] == [(b.ids, b.capped) for b in whole]
        assert [a.score for a in found] == pytest.approx([b.score for b in whole], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_probability_is_that_of_the_same_weights_in_double_precision(family: str) -> None:
    model, sources = large(family)
    found = in_parts(model, sources, 8, 4)
    model.double().eval()
    for source, hypothesis in zip(sources, found, strict=True):
        pieces = [*hypothesis.ids] if hypothesis.capped else [*hypothesis.ids, EOS]
        src = padded([source])
        with torch.no_grad():
            hidden = model.decode(torch.tensor([[BOS, *pieces[:-1]]]), model.encode(src, src != PAD))
            steps = model.project(hidden)[0].log_softmax(-1)
        assert steps.dtype == torch.float64
        total = float(steps[torch.arange(len(pieces)), torch.tensor(pieces)].sum())
        assert hypothesis.log_probability == pytest.approx(total, rel=1e-5, abs=1e-4)


def searched_twice() -> str:
    """What two families' searches find, in full precision, after the same searches came to the same."""
    found = []
    for family in ("transformer", "lstm-attention"):
        model, sources = large(family)
        first, second = (in_parts(model, sources, 3, 4) for _ in range(2))
        assert first == second
        found.append(repr(first))
    return "\n".join(found)


def test_two_searches_give_the_same_bits_in_one_process_and_in_two() -> None:
    program = "from test_incremental import searched_twice; print(searched_twice())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    here = searched_twice()
    assert len(here) > 500
    assert done.stdout == here + "\n"


@pytest.mark.parametrize("family", sorted(EVERY))
def test_batch_after_batch_finds_in_every_bit_what_each_finds_alone(
    family: str, nothing_is_zero_by_chance: None
) -> None:
    """Batches of more, of fewer and of longer sentences than the one before, and after one that failed."""
    model, rng = build_model(EVERY[family], VOCABULARY, 3), random.Random(1)
    with torch.no_grad():
        model.output()[0][EOS] = 0.0  # hardly ever the likeliest, so that most meet their cap
    for config in (DecodeConfig(beam=4, extra_length=20), DecodeConfig(beam=1, extra_length=30)):
        searcher = BeamSearch(model, config)
        for count, longest in ((2, 5), (9, 8), (1, 2), (4, 9), (12, 3), (3, 9)):
            sources = [[rng.randrange(4, VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]
            found = searcher.search(padded(sources))
            assert found == beam_search(model, padded(sources), config)
            assert count < 9 or max(hypothesis.length for hypothesis in found) > 14
            with pytest.raises(ValueError, match="a cap of 0"):
                searcher.search(padded(sources), [0] * count)
            assert searcher.search(padded(sources)) == found


@pytest.mark.parametrize("beam", [1, 4])
def test_what_kept_memory_holds_is_never_read(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng, config = transformer(11), random.Random(beam), DecodeConfig(beam=beam, extra_length=20)
    batches = [padded(drawn_sources(rng, count, longest)) for count, longest in ((9, 8), (2, 19), (14, 3), (1, 1))]
    expected = [beam_search(model, src, config) for src in batches]
    assert len({hypothesis.length for found in expected for hypothesis in found}) >= 4
    reserve = model.reserve()
    monkeypatch.setattr(model, "reserve", lambda: reserve)
    searcher = BeamSearch(model, config)
    for src, alone in zip(batches, expected, strict=True):
        with torch.inference_mode():
            reserve.memory(2**17, torch.empty(0)).fill_(torch.nan)
        assert searcher.search(src) == alone


@pytest.mark.parametrize("family", sorted(EVERY))
def test_no_state_of_a_search_outlives_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, states = build_model(EVERY[family], VOCABULARY, 3), []
    begin = model.begin

    def watched(*arguments: Any) -> Any:
        state = begin(*arguments)
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(model, "begin", watched)
    searcher = BeamSearch(model, DecodeConfig(beam=2))
    for sources in ([[5, 6, 7], [8]], [[9]]):
        searcher.search(padded(sources))
        assert states.pop()() is None


# -- linear layers in inference mode ----------------------------------------------------------------------------------

SHAPES = [(2048, 64), (4, 512, 64), (2, 4, 256, 64), (0, 64)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strided", [False, True])
def test_large_products_of_any_shape_and_type_are_the_product(
    dtype: torch.dtype, shape: tuple[int, ...], strided: bool
) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    x = draw(*shape[:-1], 2 * shape[-1])[..., ::2] if strided else draw(*shape)
    weight, bias = draw(96, 64) / 8, draw(96)
    if strided:
        weight, bias = weight.t().contiguous().t(), draw(96, 2)[:, 0]
    x[..., :1, 5] = torch.nan  # stays one
    bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.1}[dtype]
    assert x.numel() == 0 or x.numel() * 96 >= linear.WORTH
    for b, relu in itertools.product((bias, None), (True, False)):
        expected = torch.einsum("...i,oi->...o", x.double(), weight.double()) + (0.0 if b is None else b.double())
        expected = expected.clamp(min=0.0) if relu else expected
        with torch.inference_mode():
            y = linear.linear(x, weight, b, relu=relu)
        assert (y.shape, y.dtype) == (expected.shape, dtype)
        assert torch.allclose(y.double(), expected, rtol=0.0, atol=bound, equal_nan=True)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("d_out", "d_in"), [(96, 64), (4000, 512)])
def test_a_linear_layer_made_ready_gives_every_bit_of_one_that_is_not(d_out: int, d_in: int, strided: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(d_out, d_in, generator=generator), torch.randn(d_out, 2, generator=generator)[:, 0]
    if strided:
        weight = weight.t().contiguous().t()
    with torch.inference_mode():
        for b in (bias, None):
            ready = PreparedLinear(weight, b)
            for rows in (1, 2, 150, 200, 201, 700):
                x = torch.randn(rows, d_in, generator=generator)
                assert torch.equal(ready(x), linear.linear(x, weight, b)), rows


def test_a_wide_model_in_double_precision_is_searched() -> None:
    model = transformer(9, d_model=64, d_ff=512).double()
    sources = [[5 + number % 20] * 30 for number in range(40)]
    assert linear.WORTH < 40 * 31 * 64 * 512
    (alone,) = beam_search(model, padded(sources[:1]), DecodeConfig(extra_length=1))
    together = beam_search(model, padded(sources), DecodeConfig(extra_length=1))[0]
    assert together.ids == alone.ids
    assert together.score == pytest.approx(alone.score, abs=1e-6)


def test_a_wide_model_is_searched_under_autocast() -> None:
    model = transformer(10, d_model=64)
    src = padded([[5 + number % 20] * (1 + number % 5) for number in range(300)])
    assert linear.WORTH < 300 * 64 * 64
    expected = beam_search(model, src, DecodeConfig(beam=1), caps=[1] * 300)
    with torch.autocast("cpu", torch.bfloat16):
        found = beam_search(model, src, DecodeConfig(beam=1), caps=[1] * 300)
    scores = [[hypothesis.log_probability for hypothesis in of] for of in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)
    assert scores[0] != scores[1]
