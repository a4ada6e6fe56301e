"""A model's scores on one split: perplexity under teacher forcing, and the translations with BLEU and chrF."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repro.config import DecodeConfig, RunConfig
from repro.data import smoke
from repro.data.batches import Sampler, collate
from repro.data.prepare import Prepared
from repro.decoding.scores import PROTOCOLS, Protocol, bleu_by_length, score
from repro.decoding.translate import translate_lines
from repro.models.seq2seq import MemoryT, Seq2Seq, StateT
from repro.training.counters import Seconds
from repro.training.loss import smoothed_loss

_EVALUATION_TOKENS = 8000
"""Padded positions a side held at once when perplexity is measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one split as they stand in result.json, and the translations, one a source line."""

    scores: dict[str, Any]
    hypotheses: list[str]


def perplexity(model: Seq2Seq[MemoryT, StateT], prepared: Prepared, split: str, device: torch.device) -> float:
    """exp of the mean unsmoothed negative log-likelihood per target piece, end marks in and padding out."""
    encoded = prepared.encoded(split)
    sampler = Sampler(
        encoded.src_lengths + 1,
        encoded.tgt_lengths + 1,
        batch_tokens=_EVALUATION_TOKENS,
        scale="evaluation",
        seed=0,
        longer_alone=True,
    )
    total, tokens = 0.0, 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for indices in sampler.epoch(0):
            batch = collate(encoded, indices).to(device)
            loss = smoothed_loss(
                model(batch.src, batch.src_mask, batch.tgt_in),
                batch.tgt_out,
                model.output(),
                smoothing=0.0,
                kind="uniform",
                normaliser=1,
            )
            total += float(loss.nll)
            tokens += int(batch.tgt_lengths.sum())
    model.train(was_training)
    # A far-off model's perplexity has no float; the largest one is as good a number.
    return math.exp(min(total / tokens, 700.0))


def evaluate(
    model: Seq2Seq[MemoryT, StateT],
    prepared: Prepared,
    split: str,
    config: RunConfig,
    decode: DecodeConfig | None,
    *,
    device: torch.device,
    seconds: Seconds,
    protocols: Sequence[Protocol] = PROTOCOLS,
) -> Evaluation:
    """The scores of `model` on `split` under `protocols`; `decode` None leaves translation out.

    The time goes to `seconds`.
    """
    started = time.perf_counter()
    scores: dict[str, Any] = {"perplexity": perplexity(model, prepared, split, device)}
    decoding = time.perf_counter()
    seconds.evaluate += decoding - started
    if decode is None:
        return Evaluation(scores, [])
    sources, references = prepared.raw(split, "src"), prepared.raw(split, "tgt")
    translations = translate_lines(model, prepared.vocabulary(), sources, decode, device=device)
    scoring = time.perf_counter()
    seconds.decode += scoring - decoding
    scores |= score(translations.lines, references, language=prepared.languages[1], protocols=protocols)
    scores["reference_sha256"] = prepared.reference_sha256(split)
    scores["capped_share"] = translations.capped_share
    scores["unknown_share"] = translations.unknown_share
    scores["bleu_by_length"] = bleu_by_length(translations.lines, references)
    if config.data.corpus == "smoke":
        scores["smoke"] = smoke.analyse(sources, references, translations.lines)
    seconds.evaluate += time.perf_counter() - scoring
    return Evaluation(scores, translations.lines)


def greedy(decode: DecodeConfig) -> DecodeConfig:
    """`decode` with a beam of one."""
    return dataclasses.replace(decode, beam=1)
