"""All checks together: the proof that this installation computes what the paper says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from repro.verify import attention, baselines, counts, defaults, device, formulas, masks, positions, search, twin
from repro.verify.check import Check, Claim

CLAIMS: tuple[Claim, ...] = tuple(
    claim
    for module in (defaults, attention, positions, masks, device, twin, baselines, formulas, counts, search)
    for claim in module.CLAIMS
)

TITLES = {
    "defaults": "The paper's numbers as defaults",
    "attention": "Scaled dot-product attention",
    "positions": "Positions",
    "masks": "Masks and padding",
    "device": "What a GPU computes",
    "torch": "Against torch.nn.Transformer",
    "baselines": "What the baselines are built of",
    "loss": "Loss and perplexity",
    "rate": "Learning rate",
    "decoding": "Length penalty and BLEU",
    "parameters": "Parameters",
    "flops": "FLOPs",
    "cost": "Training cost",
    "search": "Beam search",
}
"""The groups, in the order in which they are made and shown."""


def verify(claims: Iterable[Claim] | None = None) -> list[Check]:
    """The outcome of every claim (all CLAIMS when None), in order.

    On the CPU with one thread, in well under a minute, and on a GPU what is about GPUs where there is one; no state of
    torch's is left changed.
    """
    with _one_thread(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return [claim.check() for claim in (CLAIMS if claims is None else claims)]


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
