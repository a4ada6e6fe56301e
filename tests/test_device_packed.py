"""What a GPU computes: sentences packed into arrays of few sizes, equal to the padded pass that a CPU computes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from repro.bench.shapes import SHAPES, sampler
from repro.config import TransformerConfig
from repro.data.pieces import BOS, EOS, PAD, Batch
from repro.errors import CheckError
from repro.models.attention import Segments, attend_packed, refusal
from repro.models.build import build_model
from repro.models.seq2seq import Output
from repro.models.transformer import Transformer
from repro.training.ahead import MOST_RECORDINGS
from repro.training.loss import smoothed_loss
from repro.training.packed import STEPS, Packed, Shape, hidden_states, pack, tables, unpack

VOCABULARY = 60
FULL = 2000


def batch_of(src: list[int], tgt: list[int], seed: int = 1) -> Batch:
    """Random pairs of these lengths, the end mark counted."""
    draws = torch.Generator().manual_seed(seed)

    def side(lengths: list[int]) -> Tensor:
        rows = torch.full((len(lengths), max(lengths)), PAD)
        for row, length in zip(rows, lengths, strict=True):
            row[: length - 1] = torch.randint(EOS + 1, VOCABULARY, (length - 1,), generator=draws)
            row[length - 1] = EOS
        return rows

    sources, out = side(src), side(tgt)
    tgt_in = torch.cat((torch.full((len(tgt), 1), BOS), out[:, :-1].where(out[:, :-1] != EOS, PAD)), 1)
    return Batch(sources, tgt_in, out, torch.tensor(src), torch.tensor(tgt))


BATCH = batch_of([5, 9, 1, 70, 12, 3], [7, 4, 2, 30, 66, 3])


def packed(batch: Batch, full: int = FULL) -> tuple[Packed, Shape]:
    shape = Shape.of(batch.src_lengths, batch.tgt_lengths, full)
    return unpack(pack(batch, shape, int(batch.tgt_lengths.sum())), shape), shape


def test_packing_keeps_every_real_piece_with_its_place_and_nothing_else() -> None:
    made, shape = packed(BATCH)
    tokens = int(BATCH.tgt_lengths.sum())
    assert int(made.tokens) == tokens
    assert made.src[: int(BATCH.src_lengths.sum())].tolist() == BATCH.src[BATCH.src != PAD].tolist()
    assert made.tgt_out[:tokens].tolist() == BATCH.tgt_out[BATCH.tgt_out != PAD].tolist()
    assert made.tgt_in[:tokens].tolist() == BATCH.tgt_in[BATCH.tgt_out != PAD].tolist()
    assert made.tgt_positions[:tokens].tolist() == [p for n in BATCH.tgt_lengths.tolist() for p in range(n)]
    assert made.src_segments.starts[:7].tolist() == [0, *np.cumsum(BATCH.src_lengths.numpy())]
    assert bool((made.tgt_out[tokens:] == PAD).all())
    assert (len(made.src), len(made.tgt_in)) == (shape.src, shape.tgt)


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_in_a_sentence_of_bounded_length_that_is_empty_on_both_sides_or_on_none(seed: int) -> None:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(1, 200))
    src, tgt = (draws.integers(1, draws.integers(2, 300), count).tolist() for _ in range(2))
    made, shape = packed(batch_of(src, tgt), full=int(draws.integers(1, 30_000)))
    lengths = [part.starts.diff() for part in (made.src_segments, made.tgt_segments)]
    for part, rows, sizes in zip((made.src_segments, made.tgt_segments), (shape.src, shape.tgt), lengths, strict=True):
        assert len(part.starts) == shape.sentences + 1
        assert (int(part.starts[0]), int(part.starts[-1])) == (0, rows)
        assert 0 <= int(sizes.min()) <= int(sizes.max()) <= part.longest
    assert torch.equal(lengths[0] > 0, lengths[1] > 0)


def test_packed_attention_is_attention_within_each_sentence() -> None:
    draws = torch.Generator().manual_seed(3)
    queries, keys = [3, 1, 5, 2], [4, 6, 1, 2]
    q, k, v = (
        torch.randn(sum(n), 2, d, generator=draws, dtype=torch.float64) for n, d in ((queries, 4), (keys, 4), (keys, 6))
    )
    starts = [Segments(torch.tensor([0, *np.cumsum(n)], dtype=torch.int32), 8) for n in (queries, keys)]
    made = attend_packed(q, k, v, starts[0], starts[1], scale=0.3)
    alone = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    expected = [
        torch.einsum("hqk,khd->qhd", (0.3 * torch.einsum("qhd,khd->hqk", a, b)).softmax(-1), c) for a, b, c in alone
    ]
    torch.testing.assert_close(made, torch.cat(expected))


CONFIGS = {
    "base": {},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned", "max_positions": 80},
    "no positions": {"positions": "none"},
    "no causal mask": {"causal_mask": False},
    "narrow keys": {"d_k": 2, "d_v": 8},
    "no bias, unscaled": {"attention_bias": False, "scale_attention": False},
}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_the_packed_pass_gives_the_states_and_gradients_of_the_padded_one(options: dict[str, Any]) -> None:
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4, dropout=0.0, **options)
    model = build_model(config, VOCABULARY, 1).double()
    assert isinstance(model, Transformer)
    made, shape = packed(BATCH)
    real = BATCH.tgt_out != PAD
    tokens = int(real.sum())

    hidden = model(BATCH.src, BATCH.src_mask, BATCH.tgt_in)
    loss = smoothed_loss(hidden, BATCH.tgt_out, model.output(), smoothing=0.1, normaliser=tokens)
    loss.total.backward()
    expected = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad()
    states = hidden_states(model, made, tables(model, shape, 70))
    again = smoothed_loss(
        states[None], made.tgt_out[None], model.output(), smoothing=0.1, normaliser=made.tokens, compact=False
    )
    again.total.backward()

    torch.testing.assert_close(states[:tokens], hidden[real], atol=1e-10, rtol=1e-10)
    assert float(again.total) == pytest.approx(float(loss.total), rel=1e-12)
    assert float(again.nll) == pytest.approx(float(loss.nll), rel=1e-12)
    for name, part in model.named_parameters():
        torch.testing.assert_close(part.grad, expected[name], atol=1e-10, rtol=1e-8, msg=name)


def test_a_sentence_without_learned_positions_is_refused_by_name() -> None:
    config = TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2, positions="learned", max_positions=60)
    model = build_model(config, VOCABULARY, 1)
    assert isinstance(model, Transformer)
    shape = Shape.of(BATCH.src_lengths, BATCH.tgt_lengths, FULL)
    assert [len(rows) for rows in tables(model, shape, 60) if rows is not None] == [60, 60]
    with pytest.raises(CheckError, match="learned positions"):
        tables(model, shape, 70)


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "heads",
    [{}, {"n_heads": 1, "d_k": 256, "d_v": 256}, {"d_k": 1, "d_v": 1}, {"d_k": 16}, {"d_k": 12, "d_v": 5}],
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False])
def test_off_the_cpu_every_attention_is_flash_attention_forth_and_back_without_a_look_at_a_value(
    heads: dict[str, int], causal: bool
) -> None:
    # The meta device has no values: whatever asks for one, or for a size that depends on one, raises.
    config = TransformerConfig(n_layers=2, causal_mask=causal, **heads)
    assert refusal(config) == ""
    model = build_model(config, VOCABULARY, 1, "meta").train().bfloat16()
    assert isinstance(model, Transformer)
    shape = Shape.of(BATCH.src_lengths, BATCH.tgt_lengths, FULL)
    made = unpack(torch.empty(shape.numbers, dtype=torch.int64, device="meta"), shape)
    with Operators() as operators:
        states = hidden_states(model, made, tables(model, shape, 70))
        states.sum().backward()
    attentions = 3 * 2
    assert operators.seen["_flash_attention_forward"] == operators.seen["_flash_attention_backward"] == attentions
    assert not any("scaled_dot_product" in name for name in operators.seen)
    assert states.shape == (shape.tgt, config.d_model)


def test_what_flash_attention_does_not_take_is_named() -> None:
    assert "dropout" in refusal(TransformerConfig(attention_dropout=0.1))
    assert "heads of 512 numbers, flash attention takes 256" in refusal(TransformerConfig(n_heads=1))
    assert refusal(TransformerConfig(n_heads=2)) == ""
    assert "takes 192" in refusal(TransformerConfig(n_heads=2), 192)


def test_padding_counts_nothing_where_all_positions_are_computed() -> None:
    draws = torch.Generator().manual_seed(5)
    weight = torch.randn(VOCABULARY, 8, generator=draws, requires_grad=True)
    bias = torch.randn(VOCABULARY, generator=draws, requires_grad=True)
    hidden = torch.randn(*BATCH.tgt_out.shape, 8, generator=draws, requires_grad=True)
    found = []
    for compact in (True, False):
        output = Output(weight, bias)
        loss = smoothed_loss(hidden, BATCH.tgt_out, output, smoothing=0.1, kind="exclude_gold", compact=compact)
        gradients = torch.autograd.grad(loss.total, (hidden, weight, bias))
        found.append((float(loss.total.detach()), float(loss.nll), gradients))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-6)
    for one, other in zip(found[0][2], found[1][2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["multi30k-cpu", "small", "base"])
@pytest.mark.parametrize("tokens", [4096, 25_000])
def test_a_run_meets_few_sizes_and_fills_little(name: str, tokens: int) -> None:
    # The pairs of the bench: lengths about a corpus's means, spread by half of them.
    text = SHAPES[name].text()
    config = SHAPES[name].config("cuda")
    batches = sampler(text, dataclasses.replace(config, train=dataclasses.replace(config.train, batch_tokens=tokens)))
    lengths = text.src_lengths + 1, text.tgt_lengths + 1
    met, rows, real = set(), 0, 0
    for epoch in range(2):
        for indices in batches.epoch(epoch):
            src, tgt = (torch.from_numpy(side[indices]) for side in lengths)
            shape = Shape.of(src, tgt, tokens)
            met.add(shape)
            rows, real = rows + shape.src + shape.tgt, real + int(src.sum() + tgt.sum())
    assert len(met) <= MOST_RECORDINGS
    assert rows / real <= 1 + 1.5 / STEPS
