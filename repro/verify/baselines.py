"""What the baselines are built of: LSTM layers, additive attention and gated convolutions, against torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models import additive, convs2s, recurrent
from repro.verify.check import Claim, at_most
from repro.verify.toys import largest

_LENGTHS = (4, 9, 1, 7)
"""Of the sentences in the batch that layers read."""


def _claims() -> tuple[Claim, ...]:
    made: tuple[tuple[str, str, str, Callable[[], list[Tensor]]], ...] = (
        (
            "lstm-layer",
            "an LSTM layer over padded sentences, with the state at each one's end: outputs, state, gradients",
            "torch.nn.LSTMCell, step by step over each sentence alone",
            _lstm,
        ),
        (
            "bidirectional-layer",
            "a layer that reads each padded sentence in both directions",
            "torch.nn.LSTM, bidirectional, over packed sentences",
            _bidirectional,
        ),
        (
            "additive-scores",
            "additive attention's scores and their gradients",
            "Bahdanau et al. 2015, appendix A.1.2: v^T tanh(W_q s + W_k h), number by number",
            _additive,
        ),
        (
            "gated-convolution",
            "a convolution with weight normalisation and gated linear units: outputs and gradients",
            "torch.nn.Conv1d under torch's weight_norm, and glu",
            _convolution,
        ),
    )
    return tuple(
        at_most(f"baselines.{name}", what, source=source, limit=1e-5, got=partial(_distance, differences))
        for name, what, source, differences in made
    )


def _distance(differences: Callable[[], list[Tensor]]) -> float:
    return max(largest(difference) for difference in differences())


def _random(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def _draw(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)


def _apart(ours: list[Tensor], theirs: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Differences of both lists, and of the gradients that reach `inputs` through them."""
    sides = []
    for outputs in (ours, theirs):
        shares = _random(7, *(tuple(output.shape) for output in outputs))
        total = torch.stack([(output * share).mean() for output, share in zip(outputs, shares, strict=True)]).sum()
        sides.append([*outputs, *torch.autograd.grad(total, inputs)])
    return [a - b for a, b in zip(*sides, strict=True)]


def _lstm() -> list[Tensor]:
    layer, cell = recurrent.LstmLayer(6, 8), nn.LSTMCell(6, 8)
    _draw(layer, 1)
    weights = {name: getattr(layer.lstm, f"{name}_l0") for name, _ in cell.named_parameters()}
    (x,) = _random(2, (len(_LENGTHS), max(_LENGTHS), 6))
    x.requires_grad_()
    mask = torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None]
    order, stretches = recurrent.falling_lengths(mask)
    outputs, end = layer.to_ends(x[order], stretches)
    back = order.argsort()
    rows, ends = [], []
    for row, length in enumerate(_LENGTHS):
        state = (torch.zeros(8), torch.zeros(8))
        steps = []
        for t in range(length):
            state = torch.func.functional_call(cell, weights, (x[row, t], state))
            steps.append(state[0])
        rows.append(torch.stack(steps))
        ends.append(torch.cat(state))
    ours = [outputs[back][mask], torch.cat((end.h, end.c), -1)[back]]
    return _apart(ours, [torch.cat(rows), torch.stack(ends)], [x, *layer.parameters()])


def _bidirectional() -> list[Tensor]:
    layer, theirs = recurrent.BidirectionalLayer(6, 8), nn.LSTM(6, 8, batch_first=True, bidirectional=True)
    _draw(layer, 3)
    weights: dict[str, Tensor] = {
        name + ending: parameter
        for direction, ending in ((layer.forwards, ""), (layer.backwards, "_reverse"))
        for name, parameter in direction.lstm.named_parameters()
    }
    (x,) = _random(4, (len(_LENGTHS), max(_LENGTHS), 6))
    x.requires_grad_()
    mask = torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None]
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(_LENGTHS), batch_first=True, enforce_sorted=False)
    read, _ = torch.func.functional_call(theirs, weights, (packed,))
    expected, _ = nn.utils.rnn.pad_packed_sequence(read, batch_first=True)
    return _apart([layer(x, recurrent.reverse_order(mask))[mask]], [expected[mask]], [x, *layer.parameters()])


def _additive() -> list[Tensor]:
    inputs = [part.requires_grad_() for part in _random(5, (3, 5, 12), (3, 9, 12), (12,))]
    queries, keys, score = inputs
    plain = (torch.tanh(queries[:, :, None] + keys[:, None]) * score).sum(-1)
    return _apart([additive.additive_scores(queries, keys, score)], [plain], inputs)


def _convolution() -> list[Tensor]:
    kernel, width = 3, 8
    layer = convs2s.Convolution(6, width, kernel)
    _draw(layer, 6)
    (x,) = _random(8, (2, 9, 6))
    x.requires_grad_()
    gated = layer.gated
    # One of our rows holds the kernel's positions side by side; torch's has them last.
    direction = gated.direction.view(2 * width, kernel, 6).transpose(1, 2)
    theirs = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 2 * width, kernel), dim=0)
    weights = {"original0": gated.gain[:, None, None], "original1": direction}
    weights = {f"parametrizations.weight.{name}": part for name, part in weights.items()} | {"bias": gated.bias}
    padded = functional.pad(x.transpose(1, 2), (kernel - 1, 0))
    expected = functional.glu(torch.func.functional_call(theirs, weights, (padded,)), 1).transpose(1, 2)
    ours = functional.glu(gated(layer.windows(x, kernel - 1)), -1)
    return _apart([ours], [expected], [x, gated.direction, gated.gain, gated.bias])


CLAIMS: tuple[Claim, ...] = _claims()
