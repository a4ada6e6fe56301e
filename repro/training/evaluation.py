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
from repro.data.batches import Sampler, collate, split_batch
from repro.data.pieces import Batch
from repro.data.prepare import Prepared
from repro.decoding.scores import PROTOCOLS, Protocol, bleu_by_length, score
from repro.decoding.translate import translate_lines
from repro.errors import CheckError
from repro.models.seq2seq import MemoryT, Seq2Seq, StateT
from repro.shortage import is_shortage, release
from repro.training.counters import Seconds
from repro.training.loss import smoothed_loss

_EVALUATION_TOKENS = 8000
"""Padded positions a side held at once when perplexity is measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one split as they stand in result.json, and the translations, one a source line."""

    scores: dict[str, Any]
    hypotheses: list[str]
    notes: list[str]
    """What the scores do not show, in words: that memory ran out and batches were halved."""


def perplexity(
    model: Seq2Seq[MemoryT, StateT],
    prepared: Prepared,
    split: str,
    device: torch.device,
    notes: list[str] | None = None,
) -> float:
    """exp of the mean unsmoothed negative log-likelihood per target piece, end marks in and padding out.

    `notes` are added to where memory runs out and batches are halved.
    """
    rows: list[int] = []
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
            batch = collate(encoded, indices)
            total += _nll(model, batch, device, rows)
            tokens += int(batch.tgt_lengths.sum())
    model.train(was_training)
    if rows and notes is not None:
        notes.append(f"out of memory: perplexity of {split} was computed in batches of less than {min(rows)} sentences")
    # A far-off model's perplexity has no float; the largest one is as good a number.
    return math.exp(min(total / tokens, 700.0))


def _nll(model: Seq2Seq[MemoryT, StateT], batch: Batch, device: torch.device, short: list[int]) -> float:
    """The unsmoothed negative log-likelihood of `batch`; where memory runs out, that of its halves.

    The number of sentences that were too many is appended to `short`.
    """
    try:
        given = batch.to(device)
        hidden = model(given.src, given.src_mask, given.tgt_in)
        loss = smoothed_loss(hidden, given.tgt_out, model.output(), smoothing=0.0, kind="uniform", normaliser=1)
        return float(loss.nll)
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
    release()
    short.append(len(batch.src))
    if len(batch.src) == 1:
        what = f"out of memory: a single sentence of {int(batch.tgt_lengths.max())} pieces does not fit"
        raise CheckError(what, where="evaluation", fix="run fewer at once or take a device with more memory")
    return sum(_nll(model, half, device, short) for half in split_batch(batch, batch.src.numel(), least=2))


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
    notes: list[str] = []
    scores: dict[str, Any] = {"perplexity": perplexity(model, prepared, split, device, notes)}
    decoding = time.perf_counter()
    seconds.evaluate += decoding - started
    if decode is None:
        return Evaluation(scores, [], notes)
    sources, references = prepared.raw(split, "src"), prepared.raw(split, "tgt")
    translations = translate_lines(model, prepared.vocabulary(), sources, decode, device=device)
    scoring = time.perf_counter()
    seconds.decode += scoring - decoding
    scores |= score(translations.lines, references, language=prepared.languages[1], protocols=protocols)
    scores["reference_sha256"] = prepared.reference_sha256(split)
    scores["capped_share"] = translations.capped_share
    scores["unknown_share"] = translations.unknown_share
    scores["bleu_by_length"] = bleu_by_length(translations.lines, references, sources=sources)
    if config.data.corpus == "smoke":
        scores["smoke"] = smoke.analyse(sources, references, translations.lines)
    seconds.evaluate += time.perf_counter() - scoring
    if translations.batch_tokens < decode.batch_tokens:
        scores["decode_batch_tokens"] = translations.batch_tokens
        notes.append(
            f"out of memory: {split} was decoded in batches of {translations.batch_tokens}, not {decode.batch_tokens}"
        )
    return Evaluation(scores, translations.lines, notes)


def greedy(decode: DecodeConfig) -> DecodeConfig:
    """`decode` with a beam of one."""
    return dataclasses.replace(decode, beam=1)
