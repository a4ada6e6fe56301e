"""Batched beam search over any model family.

What is searched for. A hypothesis is a sequence of generated pieces; its length counts them, end mark included, and
its score is its log probability divided by the penalty of that length. At every step the `beam` live hypotheses of a
sentence are continued by every piece and the best `beam` continuations are looked at: those that end with the end mark
become finished hypotheses, frozen with the score of their own length; the best `beam` that do not end live on. A
sentence's answer is its finished hypothesis of the best score, the earlier one of two equal ones. Where none finished
within the sentence's cap, it is the best live one, closed there without an end mark and marked as capped.

The search of a sentence stops as soon as no live hypothesis can beat its best finished one any more. A log probability
never rises and a penalty is monotone in the length, so log probability / (largest penalty still ahead) bounds the score
of all that can follow, and stopping early never changes the answer. A beam of 1 is greedy search: its first end mark
stops it.

A sentence's result does not depend on its batch: nothing is shared between sentences but the matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.config.run import DecodeConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.decoding.penalty import length_penalty
from repro.errors import CheckError
from repro.models.seq2seq import Seq2Seq

_FIRST = EOS
"""The lowest piece that may be generated: padding, unknown and the start mark lie below it and never are."""

_BLOCK = 64
"""Neighbouring pieces whose largest logit is looked at before any single one. torch takes the largest of 64 numbers in
four vector registers; of 80, the last 16 one by one."""

_PER_CHOSEN = 64
"""Numbers for each one that `topk` is to find from which on torch keeps a heap of the best; fewer it partitions, which
takes twice as long."""

_ROWS = 128
"""Rows of logits whose softmax is taken at once: large memory that is asked for anew is cleared by the system first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One finished translation of one sentence."""

    ids: tuple[int, ...]
    """The generated pieces, without the end mark."""
    log_probability: float
    """Natural logarithm of the model's probability of the pieces, end mark included."""
    score: float
    """`log_probability` divided by the penalty of `length`."""
    capped: bool
    """Closed at the cap, without an end mark."""

    @property
    def length(self) -> int:
        """Generated pieces, the end mark included."""
        return len(self.ids) + (not self.capped)


def beam_search(
    model: Seq2Seq[Any, Any], src: Tensor, config: DecodeConfig, *, caps: Sequence[int] | None = None
) -> list[Hypothesis]:
    """`BeamSearch.search` of one batch."""
    return BeamSearch(model, config).search(src, caps)


class BeamSearch:
    """Beam search of one batch after the other with the same model, whose parameters stay as they are meanwhile.

    What is laid out for a batch, weights and large memory, serves the next one too.
    """

    def __init__(self, model: Seq2Seq[Any, Any], config: DecodeConfig) -> None:
        self._model, self._config = model, config
        with torch.inference_mode():
            self._project = model.projection()
        self._reserve: Any = None

    def search(self, src: Tensor, caps: Sequence[int] | None = None) -> list[Hypothesis]:
        """The best hypothesis of each row of `src` [batch, src_len] (pieces, the end mark, padding), in order.

        `caps` are the most pieces generated for each row, end mark included; by default the row's own pieces without
        the end mark plus `config.extra_length`; never more than `model.max_positions`. Padding, unknown piece and start
        mark are never generated; probabilities are the model's own, not renormalised for that. Of equal candidates the
        lower slot, then the lower piece wins. The model is put into evaluation mode and back. Raises ValueError for a
        cap below 1 or caps of another number than rows, CheckError when the model's probabilities are not finite.
        """
        if src.shape[0] == 0:
            return []
        model, config, src_mask = self._model, self._config, src != PAD
        if caps is None:
            limits = src_mask.sum(1) - 1 + config.extra_length
        else:
            if len(caps) != src.shape[0]:
                raise ValueError(f"{len(caps)} caps for {src.shape[0]} rows")
            limits = torch.tensor(caps, dtype=torch.int64, device=src.device)
        if model.max_positions is not None:
            limits = limits.clamp(max=model.max_positions)
        with torch.inference_mode(), evaluation_mode(model):
            reserve, self._reserve = self._reserve or model.reserve(), None  # a search that fails leaves nothing
            # All hypotheses begin alike: one a sentence, which the first step spreads over the beam.
            state = model.begin(model.encode(src, src_mask), reserve)
            search = _Search(limits, config)
            pieces, sentences = torch.full_like(limits, BOS), limits.numel()
            while True:
                logits = self._project(model.advance(pieces, state)).float()
                kept, beams, pieces = search.step(logits)
                del logits  # so that the next ones take their place
                if kept.numel() == 0:
                    self._reserve = reserve
                    return search.hypotheses()
                if config.beam > 1 or kept.numel() < sentences:
                    state.reorder(kept, beams)
                sentences = kept.numel()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode for the block, then in the mode it had."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


@dataclass(slots=True)
class _Best:
    """The best finished hypothesis of each sentence, all [n]; its pieces are found by walking back from its end."""

    score: Tensor
    """-inf where none has finished."""
    log_probability: Tensor
    slot: Tensor
    """Of its last piece, in the history."""
    pieces: Tensor
    """How many, the end mark left out."""

    @staticmethod
    def none(count: int, device: torch.device) -> _Best:
        """No hypothesis yet for `count` sentences."""
        worst = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        zeros = torch.zeros(count, dtype=torch.int64, device=device)
        return _Best(worst, worst.clone(), zeros, zeros.clone())

    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four, in the order of the fields."""
        return self.score, self.log_probability, self.slot, self.pieces

    def update(self, which: Tensor, score: Tensor, log_probability: Tensor, slot: Tensor, pieces: int) -> None:
        """Take the new hypotheses where `which` [n]; they end in `slot` after `pieces` pieces."""
        self.score = torch.where(which, score, self.score)
        self.log_probability = torch.where(which, log_probability, self.log_probability)
        self.slot = torch.where(which, slot, self.slot)
        self.pieces = torch.where(which, pieces, self.pieces)


class _Search:
    """The hypotheses of a batch: `n` sentences are still searched, of `batch` at the start.

    Each has one slot at the start and `beam` after the first step.
    """

    def __init__(self, limits: Tensor, config: DecodeConfig) -> None:
        batch, device = limits.numel(), limits.device
        self.beam, self.kind, self.alpha = config.beam, config.length_penalty, config.alpha
        self.length = 0
        self.rank = torch.arange(2 * self.beam, device=device)  # of continuations, the best first
        # Of the sentences still searched; slots are kept in order, the best first, -inf for none.
        self.sentences = torch.arange(batch, device=device)
        self.limits = limits
        self.caps: list[int] = limits.tolist()
        if min(self.caps) < 1:
            raise ValueError(f"a cap of {min(self.caps)} pieces: the least is 1, the end mark")
        penalties = [length_penalty(self.kind, cap, self.alpha) for cap in self.caps]
        self.limit_penalty = torch.tensor(penalties, dtype=torch.float64, device=device)
        self.live = torch.zeros(batch, 1, dtype=torch.float64, device=device)
        self.best = _Best.none(batch, device)
        # Of all sentences: the answers, and each step's continued slots and new pieces [batch, beam].
        self.answers = _Best.none(batch, device)
        self.history: list[tuple[Tensor, Tensor]] = []

    def step(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One more piece for every slot, by its `logits` [n * slots, vocabulary].

        Returns the sentences to go on with [m] (indices into the current ones: one that leaves has its place taken by
        one of the last), the slots that their hypotheses continue [m, beam], and the new pieces [m * beam].
        """
        self.length += 1
        slots, pieces, totals = best_continuations(logits, self.live, 2 * self.beam)
        ends = pieces == EOS
        has_end = self._finish((ends & (totals > -torch.inf))[:, : self.beam], slots, totals)

        # At most one continuation of a slot ends, so at least `beam` of twice as many do not.
        going = torch.where(ends, self.rank + ends.shape[1], self.rank).topk(self.beam, 1, largest=False).indices
        slots, pieces, self.live = slots.gather(1, going), pieces.gather(1, going), totals.gather(1, going)
        self._remember(slots, pieces)

        done = self._done(has_end)
        kept = (~done).nonzero().squeeze(1)
        if kept.numel() < done.numel():
            late, kept = kept[kept >= kept.numel()], torch.arange(kept.numel(), device=kept.device)
            kept[done[: kept.numel()].nonzero().squeeze(1)] = late
            self._leave(done.nonzero().squeeze(1), kept)
            slots, pieces = slots[kept], pieces[kept]
        return kept, slots, pieces.flatten()

    def _finish(self, ended: Tensor, slots: Tensor, totals: Tensor) -> Tensor:
        """Freeze the best hypothesis that ends now where it beats its sentence's best so far.

        `ended` [n, beam] marks which of the best continuations end. Returns [n], whether any does. All that end now
        are of one length and in order: the first is the best.
        """
        has_end, first = ended.max(1, keepdim=True)  # of equal ones the first
        has_end, total = has_end.squeeze(1), totals.gather(1, first).squeeze(1)
        score = total / length_penalty(self.kind, self.length, self.alpha)
        better = has_end & (score > self.best.score)
        self.best.update(better, score, total, slots.gather(1, first).squeeze(1), self.length - 1)
        return has_end

    def _done(self, has_end: Tensor) -> Tensor:
        """[n] True where the sentence's answer is settled; where nothing ended within the cap, it is closed here."""
        live = self.live[:, 0]
        if self.beam == 1:
            settled = has_end
        else:
            penalty = self.limit_penalty.clamp(min=length_penalty(self.kind, self.length + 1, self.alpha))
            settled = live / penalty <= self.best.score
        at_limit = self.length >= self.limits
        closed = at_limit & (self.best.score == -torch.inf)
        self.best.update(closed, live / self.limit_penalty, live, torch.zeros_like(self.limits), self.length)
        return settled | at_limit

    def _remember(self, slots: Tensor, pieces: Tensor) -> None:
        batch = self.answers.score.numel()
        if self.sentences.numel() < batch:
            all_slots, all_pieces = slots.new_zeros(batch, self.beam), pieces.new_zeros(batch, self.beam)
            all_slots[self.sentences], all_pieces[self.sentences] = slots, pieces
            slots, pieces = all_slots, all_pieces
        self.history.append((slots.int(), pieces.int()))

    def _leave(self, leaving: Tensor, kept: Tensor) -> None:
        """Write down the answers of the sentences `leaving` and go on with `kept` (indices into the current ones)."""
        for answer, best in zip(self.answers.columns(), self.best.columns(), strict=True):
            answer[self.sentences[leaving]] = best[leaving]
        self.best = _Best(*(column[kept] for column in self.best.columns()))
        self.sentences, self.live = self.sentences[kept], self.live[kept]
        self.limits, self.limit_penalty = self.limits[kept], self.limit_penalty[kept]

    def hypotheses(self) -> list[Hypothesis]:
        """The answer of each sentence, in the order of the batch, once all are settled."""
        slots = self.answers.slot
        pieces = slots.new_zeros(slots.numel(), len(self.history))
        for position in range(len(self.history) - 1, -1, -1):
            parents, chosen = self.history[position]
            pieces[:, position] = chosen.gather(1, slots[:, None]).squeeze(1)
            parent = parents.gather(1, slots[:, None]).squeeze(1).long()
            slots = torch.where(position < self.answers.pieces, parent, slots)
        scores, totals, _, counts = (column.tolist() for column in self.answers.columns())
        # Only a hypothesis that was closed holds as many pieces as its cap: another has its end mark in it.
        return [
            Hypothesis(ids=tuple(row[:count]), log_probability=total, score=score, capped=count == cap)
            for row, score, total, count, cap in zip(pieces.tolist(), scores, totals, counts, self.caps, strict=True)
        ]


def best_continuations(logits: Tensor, live: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` continuations of each sentence's hypotheses, in order, the best first.

    `logits` [n * beam, vocabulary] (float32, left as they are); `live` [n, beam] (float64) are the log probabilities of
    the hypotheses, the best first, -inf for none. Returns slots, pieces and log probabilities, each [n, count]; where
    there are fewer continuations, the rest have log probability -inf. Equal ones: lower slot, then lower piece first.
    """
    n, beam = live.shape
    vocabulary = logits.shape[1]
    block = min(_BLOCK, vocabulary - _FIRST)
    tops = _block_tops(logits, block)
    # A row's normaliser. The fused softmax takes half the time of `logsumexp`; taken at the row's largest logit,
    # nothing is lost to cancellation.
    largest = torch.maximum(tops.amax(1), logits[:, :_FIRST].amax(1))
    normaliser = (largest.double() - _most_likely(logits).log()).view(n, beam)
    if not math.isfinite(float(normaliser.sum())):
        what, fix = "the model's probabilities are not finite", "train it anew, with a lower learning rate"
        raise CheckError(what, where="decode", fix=fix)
    base = live - normaliser
    # Ranked relative to the first slot: its continuations then compare by their logits exactly, as in greedy search,
    # however improbable a long hypothesis has become.
    offsets = (base - base[:, :1]).float()
    # The best `count` lie in the `count` blocks with the largest tops, ties resolved towards the lower place on both
    # levels, so that few numbers are ever sorted. In order, the blocks have their pieces in the order of all.
    ranked = (tops.view(n, beam, -1) + offsets[:, :, None]).flatten(1)
    chosen = _top(ranked, count).sort(1).values
    slots, numbers = chosen // tops.shape[1], chosen % tops.shape[1]
    starts = (_FIRST + block * numbers).clamp(max=vocabulary - block)
    rows = slots + beam * torch.arange(n, device=logits.device)[:, None]
    found = logits.flatten().unfold(0, block, 1).index_select(0, (rows * vocabulary + starts).flatten())
    values = found.view(n, -1, block) + offsets.gather(1, slots)[:, :, None]
    overlap = -(vocabulary - _FIRST) % block
    if overlap:  # of the last block with the one before it
        last = (numbers.flatten() == tops.shape[1] - 1).nonzero().squeeze(1)
        values.view(-1, block)[:, :overlap].index_fill_(0, last, -torch.inf)
    values = values.flatten(1)
    best = _top(values, count)
    which = best // block
    slots, pieces = slots.gather(1, which), starts.gather(1, which) + best % block
    totals = base.gather(1, slots) + found.view(n, -1).gather(1, best)
    totals.masked_fill_(values.gather(1, best) == -torch.inf, -torch.inf)
    if best.shape[1] < count:
        lacking = (0, count - best.shape[1])
        slots, pieces = functional.pad(slots, lacking), functional.pad(pieces, lacking)
        totals = functional.pad(totals, lacking, value=-torch.inf)
    return slots, pieces, totals


def _most_likely(logits: Tensor) -> Tensor:
    """The largest probability of each row of `logits` [rows, vocabulary], a few rows at a time."""
    return torch.cat([torch.softmax(part, 1).amax(1) for part in torch.split(logits, _ROWS)])


def _block_tops(logits: Tensor, block: int) -> Tensor:
    """The largest logit of each `block` of the pieces that may be generated, [n * beam, blocks]."""
    usable = logits[:, _FIRST:]
    whole = usable.shape[1] // block
    tops = usable[:, : whole * block].reshape(logits.shape[0], whole, block).amax(2)
    if whole * block < usable.shape[1]:
        tops = torch.cat((tops, usable[:, whole * block :].amax(1, keepdim=True)), 1)
    return tops


def _top(values: Tensor, count: int) -> Tensor:
    """Where the largest `count` of `values` [n, some] (float32) are, in order; equal ones by the lower place.

    `topk` promises nothing about equal numbers. Where there are any among the largest, it is given whole numbers
    without equals: a float's bits, made to sort like the float, above the complement of its place.
    """
    size = values.shape[1]
    if count < size:
        lacking = max(0, _PER_CHOSEN * (count + 1) - size)
        largest, places = functional.pad(values, (0, lacking), value=-torch.inf).topk(count + 1, 1)
        if not bool((largest[:, 1:] == largest[:, :-1]).any()):
            return places[:, :count]
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.long() << 32) + torch.arange(0xFFFFFFFF, 0xFFFFFFFF - size, -1, device=values.device)
    return 0xFFFFFFFF - (keys.topk(min(count, size), 1).values & 0xFFFFFFFF)
