"""LSTM layers, additive attention and the LSTM without attention, each against an independent computation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from baseline_toys import CONFIGS, VOCABULARY, sources, targets, toy
from torch import Tensor, nn

from repro.config.baselines import LstmConfig
from repro.data.pieces import PAD
from repro.models.additive import AdditiveAttention, additive_scores
from repro.models.build import build_model
from repro.models.lstm import Lstm
from repro.models.recurrent import BidirectionalLayer, Cell, LstmLayer, falling_lengths, reverse_order, take

torch.set_num_threads(1)
LENGTHS = [4, 9, 1, 7, 4]


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def plain_cell(x: Tensor, h: Tensor, c: Tensor, lstm: nn.LSTM) -> tuple[Tensor, Tensor]:
    """One step by the equations: input, forget and output gates, candidate."""
    gates = x @ lstm.weight_ih_l0.T + lstm.bias_ih_l0 + h @ lstm.weight_hh_l0.T + lstm.bias_hh_l0
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def test_a_layer_equals_a_loop_of_plain_cells_with_gradients() -> None:
    torch.manual_seed(0)
    layer = LstmLayer(6, 8)
    x, h, c = torch.randn(5, 9, 6), torch.randn(5, 8), torch.randn(5, 8)
    outputs, end = layer(x, Cell(h, c))
    weights = torch.randn(outputs.shape)
    (outputs * weights).sum().backward()
    got = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    steps = []
    for t in range(9):
        h, c = plain_cell(x[:, t], h, c, layer.lstm)
        steps.append(h)
    expected = torch.stack(steps, 1)
    (expected * weights).sum().backward()
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(end.c, c, atol=1e-6, rtol=1e-5)
    for ours, parameter in zip(got, layer.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, atol=1e-5, rtol=1e-5)


def test_a_step_equals_one_column_of_a_layer() -> None:
    torch.manual_seed(0)
    layer, x = LstmLayer(6, 8), torch.randn(5, 3, 6)
    outputs, _ = layer(x)
    cell = layer.zeros(x)
    for t in range(3):
        cell = layer.step(x[:, t], cell)
        torch.testing.assert_close(cell.h, outputs[:, t], atol=1e-6, rtol=1e-5)


def test_final_states_are_those_of_each_sentence_alone_and_an_empty_row_stays_at_zero() -> None:
    torch.manual_seed(0)
    layer = LstmLayer(6, 8)
    lengths = [9, 7, 4, 4, 0]
    order, stretches = falling_lengths(mask_of(lengths))
    assert order.tolist() == [0, 1, 2, 3, 4]
    assert [tuple(stretch) for stretch in stretches] == [(4, 0, 4), (2, 4, 7), (1, 7, 9)]
    x = torch.randn(5, 9, 6)
    outputs, final = layer.to_ends(x, stretches)
    for row, length in enumerate(lengths[:4]):
        alone, end = layer(x[row : row + 1, :length])
        torch.testing.assert_close(final.h[row], end.h[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(final.c[row], end.c[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(outputs[row, :length], alone[0], atol=1e-6, rtol=1e-5)
        assert not outputs[row, length:].any()
    assert not final.h[4].any()
    assert not final.c[4].any()


def test_sentences_are_turned_within_their_own_length() -> None:
    order = reverse_order(mask_of([3, 5, 1]))
    assert order.tolist() == [[2, 1, 0, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2, 3, 4]]
    x = torch.randn(3, 5, 2)
    torch.testing.assert_close(take(take(x, order), order), x)


def test_a_bidirectional_layer_equals_torchs_over_packed_sentences() -> None:
    torch.manual_seed(0)
    ours, theirs = BidirectionalLayer(6, 8), nn.LSTM(6, 8, batch_first=True, bidirectional=True)
    for layer, ending in ((ours.forwards.lstm, ""), (ours.backwards.lstm, "_reverse")):
        for name, parameter in layer.named_parameters():
            getattr(theirs, name + ending).data.copy_(parameter.data)
    x, mask = torch.randn(5, 9, 6), mask_of(LENGTHS)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    got = ours(x, reverse_order(mask))
    torch.testing.assert_close(got[mask], expected[mask], atol=1e-6, rtol=1e-5)


def plain_scores(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    return torch.einsum("nqkd,d->nqk", torch.tanh(queries[:, :, None] + keys[:, None]), score)


@pytest.mark.parametrize("size", [0.5, 8.0, 40.0])
def test_additive_scores_equal_their_definition_with_gradients(size: float) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(3, 7, 12) * size, torch.randn(3, 70, 12) * size, torch.randn(12)]
    upstream = torch.randn(3, 7, 70)
    results = []
    for function in (additive_scores, plain_scores):
        leaves = [part.clone().requires_grad_() for part in parts]
        scores = function(*leaves)
        scores.backward(upstream)
        results.append([scores.detach(), *(leaf.grad for leaf in leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)


def test_additive_scores_are_right_where_blocks_split_sentences_and_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    parts = torch.randn(5, 7, 12), torch.randn(5, 9, 12), torch.randn(12)
    for numbers in (1, 9 * 12 * 3, 9 * 12 * 7 * 2):
        monkeypatch.setattr("repro.models.additive._CACHE_NUMBERS", numbers)
        torch.testing.assert_close(additive_scores(*parts), plain_scores(*parts), atol=1e-5, rtol=1e-5)


def test_additive_attention_is_bahdanaus_formula_and_ignores_padding() -> None:
    torch.manual_seed(0)
    attention = AdditiveAttention(4, 6, 5)
    nn.init.normal_(attention.score)
    queries, values, mask = torch.randn(2, 3, 4), torch.randn(2, 5, 6), mask_of([3, 5])
    got = attention(queries, attention.source(values, mask))
    for row, length in enumerate([3, 5]):
        for step in range(3):
            energies = torch.stack(
                [
                    attention.score @ torch.tanh(attention.query.weight @ queries[row, step] + attention.key.weight @ h)
                    for h in values[row, :length]
                ]
            )
            expected = torch.softmax(energies, 0) @ values[row, :length]
            torch.testing.assert_close(got[row, step], expected, atol=1e-6, rtol=1e-5)
    nothing = attention(queries, attention.source(values, torch.zeros_like(mask)))
    assert nothing.isfinite().all()


def torchs_stack(layers: nn.ModuleList, x: Tensor, *state: tuple[Tensor, Tensor]) -> Any:
    """What torch's own stack gives with our layers' weights, which its gradients reach."""
    first = layers[0].lstm
    stack = nn.LSTM(first.input_size, first.hidden_size, len(layers), batch_first=True)
    weights = {
        name.replace("_l0", f"_l{i}"): parameter
        for i, layer in enumerate(layers)
        for name, parameter in layer.lstm.named_parameters()
    }
    return torch.func.functional_call(stack, weights, (x, *state))


@pytest.mark.parametrize("reverse", [True, False])
def test_the_lstm_without_attention_equals_torchs_stacks_with_gradients(reverse: bool) -> None:
    config = LstmConfig(n_layers=3, d_embedding=16, d_hidden=24, reverse_source=reverse)
    model = build_model(config, VOCABULARY, 1)
    assert isinstance(model, Lstm)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    src, tgt_in = sources(LENGTHS), targets(5, 6)
    hidden = model(src, src != PAD, tgt_in)
    assert model.embeddings.source_table is not None
    rows = []
    for row, length in enumerate(LENGTHS):
        read = src[row, :length].flip(0) if reverse else src[row, :length]
        _, end = torchs_stack(model.encoder, model.embeddings.source_table[read][None])
        rows.append(torchs_stack(model.decoder, model.embeddings.target_table[tgt_in[row]][None], end)[0][0])
    expected = torch.stack(rows)
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-4)
    share = torch.randn(hidden.shape)
    wanted = [parameter for name, parameter in model.named_parameters() if not name.startswith("logits.")]
    ours, theirs = (torch.autograd.grad((states * share).mean(), wanted) for states in (hidden, expected))
    for got, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("width", "bound"), [(1000, 0.08), (250, 0.16)])
def test_the_lstms_of_2014_start_from_plus_minus_0_08_at_their_width(width: int, bound: float) -> None:
    model = build_model(LstmConfig(n_layers=1, d_embedding=8, d_hidden=width), VOCABULARY, 1)
    everything = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert 0.999 * bound < float(everything.max()) <= bound * 1.0001
    assert -bound * 1.0001 <= float(everything.min()) < -0.999 * bound
    assert float(everything.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_the_attentive_lstm_starts_as_its_paper_says_but_for_its_width() -> None:
    weights = {name: weight.detach() for name, weight in toy("lstm-attention", spread=False).named_parameters()}
    for gate in weights["first.lstm.weight_hh_l0"].chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(24), atol=1e-5, rtol=1e-5)
    assert not weights["attention.score"].any()
    assert not weights["first.lstm.bias_ih_l0"].any()
    wider = math.sqrt(1000 / 24)
    assert float(weights["attention.query.weight"].std()) == pytest.approx(0.001 * wider, rel=0.1)
    assert float(weights["embeddings.target_table"].std()) == pytest.approx(0.01 * wider, rel=0.1)


def test_every_toy_is_of_its_own_family() -> None:
    assert {config.family for config in CONFIGS.values()} == {"lstm", "lstm-attention", "gnmt", "convs2s"}
