"""The two LSTMs with attention, against their papers' equations composed from torch's own modules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from baseline_toys import CONFIGS, VOCABULARY, sources, targets, toy
from torch import Tensor, nn

from repro.config.baselines import GnmtConfig
from repro.data.pieces import PAD
from repro.errors import UsageError
from repro.models.additive import AdditiveAttention
from repro.models.build import build_model
from repro.models.gnmt import Gnmt
from repro.models.lstm_attention import LstmAttention
from repro.models.recurrent import BidirectionalLayer, LstmLayer

torch.set_num_threads(1)
LENGTHS = [4, 9, 1, 7]

Equations = Callable[[nn.Module, Tensor, Tensor], Tensor]


def run(layer: nn.Module, x: Tensor, h: Tensor | None = None) -> Tensor:
    """torch's LSTMCell, step by step over `x` [length, d_in] of one sentence, with our layer's weights."""
    assert isinstance(layer, LstmLayer)
    cell = nn.LSTMCell(layer.lstm.input_size, layer.lstm.hidden_size)
    weights = {name: getattr(layer.lstm, f"{name}_l0") for name, _ in cell.named_parameters()}
    state = (torch.zeros(layer.lstm.hidden_size) if h is None else h, torch.zeros(layer.lstm.hidden_size))
    outputs = []
    for step in x:
        state = torch.func.functional_call(cell, weights, (step, state))
        outputs.append(state[0])
    return torch.stack(outputs)


def both_ways(layer: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, BidirectionalLayer)
    return torch.cat((run(layer.forwards, x), run(layer.backwards, x.flip(0)).flip(0)), -1)


def contexts(attention: AdditiveAttention, queries: Tensor, values: Tensor) -> Tensor:
    hidden = torch.tanh(attention.query(queries)[:, None] + attention.key(values)[None])
    return torch.softmax(hidden @ attention.score, -1) @ values


def gnmt(model: nn.Module, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Hidden states [tgt_len, d_out] of one sentence without padding: section 3 of Wu et al."""
    assert isinstance(model, Gnmt)
    x = both_ways(model.encoder_first, model.embeddings.source(src))
    x = run(model.encoder_later[0], x)
    for layer in list(model.encoder_later)[1:]:
        x = x + run(layer, x)
    y = run(model.decoder_first, model.embeddings.target(tgt_in))
    context = contexts(model.attention, y, x)
    y = run(model.decoder_later[0], torch.cat((y, context), -1))
    for layer in list(model.decoder_later)[1:]:
        y = y + run(layer, torch.cat((y, context), -1))
    return y


def attentive(model: nn.Module, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Hidden states [tgt_len, d_out] of one sentence without padding: appendix A of Bahdanau et al."""
    assert isinstance(model, LstmAttention)
    x = model.embeddings.source(src)
    for layer in model.encoder:
        x = both_ways(layer, x)
    starts = torch.tanh(model.bridge(x[0, 24:])).chunk(2)
    embedded = model.embeddings.target(tgt_in)
    y = run(model.first, embedded, starts[0])
    context = contexts(model.attention, y, x)
    y = run(model.later[0], torch.cat((y, context), -1), starts[1])
    units = model.maxout(torch.cat((y, context, embedded), -1)).view(len(tgt_in), 2, 12)
    return units.max(1).values


@pytest.mark.parametrize(("name", "equations"), [("gnmt", gnmt), ("lstm-attention", attentive)])
def test_a_model_with_additive_attention_equals_its_equations_on_each_sentence_alone_with_gradients(
    name: str, equations: Equations
) -> None:
    model = toy(name)
    src, tgt_in = sources(LENGTHS), targets(4, 6)
    hidden = model(src, src != PAD, tgt_in)
    alone = [equations(model, src[row, :length], tgt_in[row]) for row, length in enumerate(LENGTHS)]
    torch.testing.assert_close(hidden, torch.stack(alone), atol=1e-5, rtol=1e-4)
    share = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
    parameters = dict(model.named_parameters())
    unused = [name for name in parameters if name.startswith("logits.")]
    wanted = [parameter for name, parameter in parameters.items() if name not in unused]
    ours = torch.autograd.grad((hidden * share).mean(), wanted)
    plain = torch.autograd.grad((torch.stack(alone) * share).mean(), wanted)
    for got, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("width", "bound"), [(1024, 0.1), (64, 0.4)])
def test_gnmt_starts_from_plus_minus_a_tenth_at_its_width(width: int, bound: float) -> None:
    config = GnmtConfig(n_layers=2, d_embedding=8, d_hidden=width, d_attention=8)
    model = build_model(config, VOCABULARY, 1)
    everything = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert 0.999 * bound < float(everything.max()) <= bound * 1.0001
    assert float(everything.std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_gnmt_with_one_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="2 or more"):
        GnmtConfig(n_layers=1)


def test_dropout_of_gnmt_is_that_of_its_paper() -> None:
    assert GnmtConfig().dropout == 0.2
    assert CONFIGS["gnmt"].dropout == 0.0
