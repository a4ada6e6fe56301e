"""What a GPU computes: the pass over packed sentences; and where there is a GPU, its updates against the CPU's."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from repro.config import DataConfig, RunConfig, TrainConfig, TransformerConfig
from repro.data.pieces import BOS, EOS, PAD, Batch
from repro.models.build import build_model
from repro.models.transformer import Transformer
from repro.training.loss import smoothed_loss
from repro.training.packed import Shape, hidden_states, pack, tables, unpack
from repro.training.trainer import Trainer
from repro.verify.check import Claim, at_most, equal
from repro.verify.toys import VOCABULARY, largest, padded, sentences

_SAME = "the same model over padded sentences on a CPU"
_FULL = 400


def _claims() -> tuple[Claim, ...]:
    claims = [
        at_most(
            f"device.packed-{what}",
            f"sentences packed without padding, as a GPU computes them: {what} of the padded pass",
            source=_SAME,
            limit=1e-10,
            got=partial(_distance, what),
        )
        for what in ("states", "gradients")
    ]
    if torch.cuda.is_available():
        claims += _gpu_claims()
    return tuple(claims)


def _gpu_claims() -> list[Claim]:
    return [
        at_most(
            "device.gpu-updates",
            "losses of 9 updates on the GPU, passes replayed from recordings among them, beside the CPU's",
            source=f"{_SAME}, in single precision",
            limit=0.02,
            got=_away_from_the_cpu,
        ),
        at_most(
            "device.gpu-replays",
            "losses with dropout, passes replayed beside passes computed anew",
            source="a recording draws the masks of its update's own seed",
            limit=0.01,
            got=_away_from_computing,
        ),
        equal(
            "device.gpu-waits",
            "an update makes the host wait for the GPU (torch's sync debug mode): computed, replayed",
            source="torch.cuda.set_sync_debug_mode",
            expected=["no", "no"],
            got=_waits,
        ),
        equal(
            "device.gpu-skips",
            "an update whose loss is not finite changes a parameter or counts as applied",
            source="the same rule as on a CPU",
            expected=[False, False],
            got=_effect_of_a_broken_update,
        ),
    ]


def _batch(seed: int) -> Batch:
    src, out = (padded(sentences(12, 14, seed=part)) for part in (seed, seed + 50))
    shifted = out[:, :-1].where(out[:, :-1] != EOS, PAD)
    tgt_in = torch.cat((torch.full((len(out), 1), BOS), shifted), 1)
    return Batch(src, tgt_in, out, (src != PAD).sum(1), (out != PAD).sum(1))


def _distance(what: str) -> float:
    """The largest difference between the packed and the padded pass, in double precision."""
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=2, dropout=0.0)
    model = build_model(config, VOCABULARY, 1).double()
    assert isinstance(model, Transformer)
    batch = _batch(1)
    real = batch.tgt_out != PAD
    hidden = model(batch.src, batch.src_mask, batch.tgt_in)
    smoothed_loss(hidden, batch.tgt_out, model.output(), smoothing=0.1).total.backward()  # type: ignore[no-untyped-call]
    expected = _gradients(model)
    model.zero_grad()
    shape = Shape.of(batch.src_lengths, batch.tgt_lengths, _FULL)
    packed = unpack(pack(batch, shape, 1), shape)
    states = hidden_states(model, packed, tables(model, shape, 1))
    loss = smoothed_loss(states[None], packed.tgt_out[None], model.output(), smoothing=0.1, compact=False)
    loss.total.backward()  # type: ignore[no-untyped-call]
    if what == "states":
        return largest(states[: int(real.sum())] - hidden[real])
    return max(largest(a - b) for a, b in zip(_gradients(model), expected, strict=True))


def _gradients(model: Transformer) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


# On a GPU.


def _trainer(device: str, dropout: float = 0.0) -> Trainer:
    config = RunConfig(
        variant="verify",
        scale="verify",
        model=TransformerConfig(n_layers=2, d_model=64, d_ff=128, n_heads=4, dropout=dropout),
        data=DataConfig(vocabulary_size=VOCABULARY),
        train=TrainConfig(batch_tokens=_FULL, warmup_steps=20),
    )
    return Trainer(config, VOCABULARY, torch.device(device))


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(one, other, strict=True))


def _losses(trainer: Trainer, updates: int = 9, *, recorded: bool = False) -> list[float]:
    """Of updates on three batches in turn. With `recorded`, none at all unless passes of them were recorded."""
    for index in range(updates):
        trainer.launch(_batch(1 + index % 3))
    losses = [update.loss for update in trainer.settle()]
    return losses if not recorded or "recorded in" in trainer.way else [math.nan] * updates


def _away_from_the_cpu() -> float:
    with torch.cuda.stream(torch.cuda.current_stream()):
        return _apart(_losses(_trainer("cuda"), recorded=True), _losses(_trainer("cpu")))


def _away_from_computing() -> float:
    with torch.cuda.stream(torch.cuda.current_stream()):
        computing = _trainer("cuda", dropout=0.3)
        computing.record(False)
        return _apart(_losses(_trainer("cuda", dropout=0.3), recorded=True), _losses(computing))


def _waits() -> list[str]:
    with torch.cuda.stream(torch.cuda.current_stream()):
        found = []
        for recorded in (False, True):
            trainer = _trainer("cuda", dropout=0.1)
            trainer.record(recorded)
            losses = _losses(trainer, recorded=recorded)
            found.append("nothing was recorded" if math.isnan(losses[0]) else _told_by(trainer))
            trainer.settle()
        return found


def _told_by(trainer: Trainer) -> str:
    """What torch says of the first call in three updates that waits; "no" where none does."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(3):
            trainer.launch(_batch(1 + index))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return "no"


def _effect_of_a_broken_update() -> list[bool]:
    with torch.cuda.stream(torch.cuda.current_stream()):
        trainer = _trainer("cuda")
        trainer.launch(_batch(1))
        weights = trainer.weights()
        before = {name: weight.clone() for name, weight in weights.items()}
        broken = next(iter(weights.values()))
        whole = broken.clone()
        broken.fill_(torch.nan)
        trainer.launch(_batch(2))
        broken.copy_(whole)
        changed = not all(torch.equal(weight, before[name]) for name, weight in weights.items())
        return [changed, trainer.settle()[-1].applied]


CLAIMS: tuple[Claim, ...] = _claims()
