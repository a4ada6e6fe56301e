"""Training updates of the baselines beside the same layers made of torch's own fused modules."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from repro.accounting.inventory import inventory
from repro.accounting.parameters import parameters
from repro.accounting.sizing import sized
from repro.bench.clock import Clock
from repro.bench.peers import TorchConvS2S, TorchGnmt, TorchLstm, TorchLstmAttention
from repro.bench.products import Product, back, forth, seconds
from repro.bench.shapes import Shape
from repro.bench.systems import Ours, Peer, System
from repro.bench.train import Tell, compare
from repro.config.baselines import BaselineConfig, BaselineFamily, ConvS2SConfig, small
from repro.config.tuning import recommended_training
from repro.data.pieces import Batch
from repro.errors import UsageError

FAMILIES: tuple[BaselineFamily, ...] = get_args(BaselineFamily)

SYSTEMS = ("ours", "torch", "torch-padded")
"""This project; torch's modules over packed sentences; and, where there is an LSTM to read them, the same over padding
too: no such model, as its backward halves start in the padding, but what the fused modules do at their fastest."""


class FamilyPeer(Peer):
    """The update of a peer's model of a baseline, with the clipping that ours has."""

    def logits(self, batch: Batch) -> Tensor:
        """[batch, tgt_len, vocabulary]."""
        logits: Tensor = self.model(batch)
        return logits


def baseline(shape: Shape, family: BaselineFamily) -> BaselineConfig:
    """The `family` with about as many parameters as the shape's Transformer, in the depth of its small-data
    reproductions: as the table `baselines` sizes it at every scale but `paper`."""
    template = small(family)
    if isinstance(template, ConvS2SConfig):
        template = replace(template, max_positions=shape.model.max_positions)
    target = parameters(shape.model.resolved(), shape.vocabulary_size)
    return sized(family, target_parameters=target, vocabulary_size=shape.vocabulary_size, template=template)


def chosen(family: BaselineFamily, names: Sequence[str]) -> list[str]:
    """The systems called `names`, all that train `family` where there are none. UsageError for one that does not."""
    known = [name for name in SYSTEMS if family != "convs2s" or name != "torch-padded"]
    for name in names:
        if name not in known:
            fix = "choose from " + ", ".join(known)
            raise UsageError(f"no system of {family} is called {name!r}", where="--system", fix=fix)
    return list(names) or known


def build(name: str, shape: Shape, model: BaselineConfig, device: torch.device) -> System:
    """The system called `name`, one of SYSTEMS, with `model` on the batches of `shape`."""
    base = shape.config(device.type)
    config = replace(base, model=model, train=recommended_training(model, base.train))
    torch.manual_seed(1)
    if name == "ours":
        return Ours(shape, device, config)
    return FamilyPeer(peer(model, shape.vocabulary_size, packed=name == "torch"), device, config.train.clip_norm)


def peer(config: BaselineConfig, vocabulary_size: int, *, packed: bool) -> nn.Module:
    """torch's modules with the sizes of `config`."""
    match config.family:
        case "lstm":
            return TorchLstm(config, vocabulary_size, packed)
        case "lstm-attention":
            return TorchLstmAttention(config, vocabulary_size, packed)
        case "gnmt":
            return TorchGnmt(config, vocabulary_size, packed)
        case "convs2s":
            return TorchConvS2S(config, vocabulary_size)


def measure(
    shape: Shape,
    family: BaselineFamily,
    names: Sequence[str],
    device: torch.device,
    *,
    rounds: int = 5,
    tell: Tell = lambda _: None,
) -> dict[str, Any]:
    """The document of one family at one shape, as `repro.bench.train.measure`'s and with its `family`; no parts."""
    clock = Clock(device)
    batches = shape.round(device.type)
    model = baseline(shape, family)
    systems = {name: build(name, shape, model, device) for name in names}
    document = compare(
        shape,
        model,
        systems,
        batches,
        clock,
        lambda: rate(model, shape.vocabulary_size, batches, clock),
        rounds=rounds,
        tell=tell,
    )
    return {"family": family, **document}


def rate(config: BaselineConfig, vocabulary_size: int, batches: Iterable[Batch], clock: Clock) -> float:
    """FLOP/s of the products of `batches` with a weight, forward and both gradients, each by itself: a median.

    An LSTM's states are multiplied step by step, the sentences that still read at once, and all else in one product.
    """
    whole, steps, states = products(config, vocabulary_size, batches)
    flops = 6 * sum(rows * wide * out * times for (rows, wide, out), times in (whole + states).items())
    taken = zip(
        seconds(whole, clock, forth, back), seconds(steps, clock, forth), seconds(states, clock, back), strict=True
    )
    return flops / statistics.median(sum(parts) for parts in taken)


def products(
    config: BaselineConfig, vocabulary_size: int, batches: Iterable[Batch]
) -> tuple[Counter[Product], Counter[Product], Counter[Product]]:
    """The products of a step on each of `batches`, and how often each is met: those over all positions at once; those
    of an LSTM's states, step by step; and these again over all positions, as for their weight's gradient."""
    whole: Counter[Product] = Counter()
    steps: Counter[Product] = Counter()
    states: Counter[Product] = Counter()
    parts = inventory(config, vocabulary_size)
    for batch in batches:
        lengths = {"src": batch.src_lengths, "tgt": batch.tgt_lengths}
        for product in parts.products:
            rows = len(batch.src) if product.per == "sentence" else int(lengths[product.per].sum())
            if config.family == "convs2s" or product.vectors < 2:
                whole[rows, product.d_in, product.d_out] += 1
                continue
            d_hidden = product.d_out // 4  # two biases: the four gates of an LSTM
            whole[rows, product.d_in - d_hidden, product.d_out] += 1
            states[rows, d_hidden, product.d_out] += 1
            reading = lengths[product.per]
            for step in range(int(reading.max())):
                steps[int((reading > step).sum()), d_hidden, product.d_out] += 1
        whole[int(batch.tgt_lengths.sum()), parts.d_out, vocabulary_size] += 1
    return whole, steps, states
