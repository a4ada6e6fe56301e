"""A verdict on every claim: reproduced, contradicted, inconclusive or not tested, as far as the data can bear one.

A part of a claim is decided by intervals over seeds (Student t, paired by seed): reproduced when the 95 % interval lies
on the claimed side; contradicted when it lies on the other side, or when the 90 % interval shows (as two one-sided
tests at 5 % do) that there is no difference worth printing. A claim of several parts is reproduced when all are, and
contradicted when one is at a level corrected for their number. Each claim stands for itself, uncorrected over the
claims; `standing` says so to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from reports.claims.catalogue import Claim, Part, load_claims, published_systems
from reports.claims.evidence import Evidence, evidence
from reports.formats import counted, fixed, listed, signed, times
from reports.records.paper import Paper
from reports.records.study import BASE, Study
from reports.statistics.intervals import LEVEL, Interval, interval_of
from reports.statistics.measures import Measure, log_log, measure

State = Literal["reproduced", "contradicted", "inconclusive", "not tested"]
STATES: tuple[State, ...] = ("reproduced", "contradicted", "inconclusive", "not tested")

FLOOR, CEILING = 10.0, 98.0
"""BLEU of a part's best row under which differences mean little, and of all its rows above which none can show."""

MOST_SEEDS = 1000
"""More than these are told as "more"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What became of one part of a claim."""

    part: Part
    state: State
    effect: Measure
    """The contrast, one value a seed: BLEU points; of perplexity, the logarithm of a ratio of losses."""
    shown: str
    """The effect in words: "−1.2 BLEU, 95 % interval −1.8 to −0.6, 5 seeds"; empty without a value."""
    budget: str
    """What the rows had spent when they were compared; empty when they could not be."""
    reason: str
    """What the state rests on, in words."""
    published: float | None
    """The contrast in the paper, in the unit of `effect`."""
    needed: int | None = None
    """Seeds with which the same mean and scatter would decide; None when not asked, or more than `MOST_SEEDS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a study says of one claim."""

    claim: Claim
    state: State
    findings: tuple[Finding, ...]
    there: str
    """The size of the effect in the paper, in words."""
    gap_to_paper: str
    """The same, and how far the study is from the paper in size, training and text, in words."""
    sentence: str
    """What is shown, in plain words."""

    @property
    def leading(self) -> Finding:
        """The part that decides: the first in the verdict's own state."""
        return next((finding for finding in self.findings if finding.state == self.state), self.findings[0])

    @property
    def effect(self) -> Measure:
        """The effect of the leading part."""
        return self.leading.effect

    @property
    def interval(self) -> Interval | None:
        """Its 95 % interval."""
        return self.effect.interval

    @property
    def n(self) -> int:
        """Seeds it is a mean of."""
        return self.effect.n

    @property
    def budget(self) -> str:
        """What the rows had spent, in words."""
        return self.leading.budget

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of all runs that the verdict comes from."""
        return tuple(dict.fromkeys(run for finding in self.findings for run in finding.effect.runs))


def verdicts(study: Study, paper: Paper, claims: Sequence[Claim] | None = None) -> list[Verdict]:
    """The verdict on each of `claims` (those of the package unless given), in their order."""
    gap = gap_in_scale(study, paper)
    return [judge(claim, study, paper, gap) for claim in (load_claims() if claims is None else claims)]


def standing(found: Sequence[Verdict]) -> str:
    """That verdicts are not corrected for their number, and what that means, in words."""
    tested = sum(verdict.state != "not tested" for verdict in found)
    return (
        f"Each verdict stands by itself at 95 %, not corrected over the {counted(len(found), 'claim')} "
        f"({tested} tested): where there is no difference at all, one part in {2 / (1 - LEVEL):.0f} is told reproduced "
        "by chance. Read single verdicts with this in mind."
    )


def judge(claim: Claim, study: Study, paper: Paper, gap: str = "") -> Verdict:
    """The verdict on one claim; `gap` says how far the study is from the paper."""
    findings = tuple(_finding(claim, part, study, paper) for part in claim.parts)
    states = [finding.state for finding in findings]
    state: State = "inconclusive"
    if "contradicted" in states:
        state = "contradicted"
    elif len(set(states)) == 1:
        state = states[0]
    there = _there(claim, findings)
    return Verdict(
        claim=claim,
        state=state,
        findings=findings,
        there=there,
        gap_to_paper=f"{there} {gap}".rstrip(),
        sentence=_sentence(state, findings),
    )


def decide(part: Part, mean: float, spread: float, n: int, *, parts: int = 1) -> State:
    """The state of a part whose contrast has this mean and standard deviation over `n` seeds (2 or more).

    `parts`: how many parts the claim has, any of which could contradict it.
    """
    usual = interval_of(mean, spread, n)
    strict = interval_of(mean, spread, n, _strict_level(parts))
    alike_strictly = interval_of(mean, spread, n, 1 - 2 * (1 - LEVEL) / parts).within(-part.margin, part.margin)
    if part.expect == "equal":
        alike = interval_of(mean, spread, n, 2 * LEVEL - 1).within(-part.margin, part.margin)
        return _state(alike, strict.low > part.margin or strict.high < -part.margin)
    if part.expect in ("below", "at-most"):
        usual, strict = _mirrored(usual), _mirrored(strict)
    if part.expect in ("at-least", "at-most"):
        return _state(usual.low > -part.margin, strict.high < -part.margin)
    # A difference too small to print is none, even where it is certain.
    return _state(usual.low > 0, strict.high < 0 or alike_strictly)


def _strict_level(parts: int) -> float:
    """The level at which one of `parts` contradicts a whole claim, so that their number alone does not."""
    return 1 - (1 - LEVEL) / parts


def _state(holds: bool, fails: bool) -> State:
    if fails:
        return "contradicted"
    return "reproduced" if holds else "inconclusive"


def _mirrored(interval: Interval) -> Interval:
    return Interval(low=-interval.high, high=-interval.low, level=interval.level)


def seeds_needed(part: Part, mean: float, spread: float, n: int, *, parts: int = 1) -> int | None:
    """The seeds with which the same mean and spread would decide; None when even `MOST_SEEDS` would not."""
    larger = range(n + 1, MOST_SEEDS + 1)
    return next((more for more in larger if decide(part, mean, spread, more, parts=parts) != "inconclusive"), None)


# One part.


def _finding(claim: Claim, part: Part, study: Study, paper: Paper) -> Finding:
    found = evidence(claim, part, study)
    state, reason, needed = _weighed(part, found, len(claim.parts))
    return Finding(
        part=part,
        state=state,
        effect=found.effect,
        shown=_shown(part, found.effect),
        budget=found.budget,
        reason=reason,
        published=_published(part, claim, paper),
        needed=needed,
    )


def _weighed(part: Part, found: Evidence, parts: int) -> tuple[State, str, int | None]:
    """State, reason and the seeds that would be needed."""
    values = found.effect.values
    if found.refusal:
        return "not tested", found.refusal, None
    if not values and not (found.diverged and found.lost):
        return "not tested", found.missing, None
    if not values:
        return "inconclusive", f"{_diverged(found)}: no score to compare", None
    if len(values) == 1:
        return "inconclusive", "one run each, so no spread is known", None
    spread = stdev(values)
    if spread == 0:
        return "inconclusive", "all seeds came out exactly alike, so no spread is known", None
    mean = math.fsum(values) / len(values)
    state = decide(part, mean, spread, len(values), parts=parts)
    if trouble := _trouble(part, found, state):
        return "inconclusive", trouble, None
    if state != "inconclusive":
        return state, _ground(part, state, mean), None
    needed = seeds_needed(part, mean, spread, len(values), parts=parts)
    told = f"about {needed} seeds" if needed is not None else f"more than {MOST_SEEDS} seeds"
    why = "the interval is too wide"
    if decide(part, mean, spread, len(values)) == "contradicted":
        level = f"{100 * _strict_level(parts):.4g}"
        why = f"against it at 95 %, but one of {parts} parts contradicts a claim at {level} % only"
    return state, f"{why}; with this mean and spread {told} would decide", needed


def _trouble(part: Part, found: Evidence, state: State) -> str:
    """Why the scores cannot carry `state`, whatever their intervals; empty when they can."""
    levels = list(found.levels.values())
    if part.metric == "bleu" and levels and max(levels) < FLOOR:
        return f"no row reaches {FLOOR:.0f} BLEU, and differences between rows that hardly translate say little"
    same = state == "reproduced" if part.expect in ("equal", "at-least", "at-most") else state == "contradicted"
    if part.metric == "bleu" and same and levels and min(levels) > CEILING:
        return f"all rows are above {CEILING:.0f} BLEU, where no difference can show"
    if found.diverged:
        worse = {row for row, weight in part.contrast.items() if (weight > 0) == (part.expect == "below")}
        ours = set(found.diverged) <= {found.named[row] for row in worse}
        if not (state == "reproduced" and part.expect in ("below", "above") and ours):
            return f"{_diverged(found)}, and those that did not are no fair sample"
    return ""


def _diverged(found: Evidence) -> str:
    return listed([f"{counted(count, 'run')} of {row}" for row, count in found.diverged.items()]) + " diverged"


def _ground(part: Part, state: State, mean: float) -> str:
    if part.expect == "equal":
        inside = f"within ±{_margin(part)}"
        return f"shown to lie {inside}" if state == "reproduced" else f"the interval lies outside ±{_margin(part)}"
    if part.expect in ("at-least", "at-most"):
        bound = -part.margin if part.expect == "at-least" else part.margin
        above = (state == "reproduced") == (part.expect == "at-least")
        return f"the interval lies {'above' if above else 'below'} {in_words(part, bound)}"
    if state == "reproduced":
        return "the interval lies on the claimed side of zero"
    if abs(mean) > part.margin:
        return "the interval lies on the other side of zero"
    return f"a difference of {_margin(part)} or more on the claimed side is ruled out"


# In words.


def in_words(part: Part, value: float, digits: int = 1) -> str:
    """A size of the part's contrast with its unit: −1.2 BLEU, +5.4 % loss."""
    if part.metric == "bleu":
        return f"{signed(value, digits)} BLEU"
    if part.metric == "perplexity":
        return f"{signed(100 * math.expm1(value), digits)} % loss"
    return f"{signed(100 * value, digits)} % of BLEU a ten words"


def _margin(part: Part) -> str:
    return in_words(part, part.margin).removeprefix("+")


def _shown(part: Part, effect: Measure) -> str:
    if effect.mean is None:
        return ""
    text = in_words(part, effect.mean)
    if effect.interval is not None:
        low, high = (_number(part, bound) for bound in (effect.interval.low, effect.interval.high))
        text += f", 95 % interval {low} to {high}"
    return f"{text}, {effect.partial or counted(effect.n, 'seed')}"


def _number(part: Part, value: float) -> str:
    return signed({"bleu": value, "length": 100 * value}.get(part.metric, 100 * math.expm1(min(value, 700.0))), 1)


def _sentence(state: State, findings: Sequence[Finding]) -> str:
    heads: Mapping[State, str] = {
        "reproduced": "Holds here",
        "contradicted": "Does not hold here",
        "inconclusive": "Undecided here",
        "not tested": "Not tested here",
    }
    if len(findings) == 1:
        return f"{heads[state]}: {_told(findings[0])}."
    words: Mapping[State, str] = {
        "reproduced": "holds",
        "contradicted": "does not hold",
        "inconclusive": "undecided",
        "not tested": "not tested",
    }
    holding = sum(finding.state == "reproduced" for finding in findings)
    points = "; ".join(f"{words[finding.state]}: {_told(finding)}" for finding in findings)
    held = "" if state == "not tested" else f", {holding} of {len(findings)} parts hold"
    return f"{heads[state]}{held}. {points[:1].upper()}{points[1:]}."


def _told(finding: Finding) -> str:
    shown = f" ({finding.shown})" if finding.shown else ""
    return f"{finding.part.says}{shown}, {finding.reason}"


def _published(part: Part, claim: Claim, paper: Paper) -> float | None:
    if claim.paper is not None:
        if part is not claim.parts[0]:
            return None
        first, second = (published_systems()[system] for system in claim.paper)
        return round(first - second, 2)
    if part.metric == "length" or not set(part.contrast) <= set(paper.rows):
        return None
    if part.metric == "bleu":
        return round(math.fsum(weight * paper.rows[row].bleu for row, weight in part.contrast.items()), 2)
    losses = {row: log_log(paper.rows[row].perplexity) or 0.0 for row in part.contrast}
    return math.fsum(weight * losses[row] for row, weight in part.contrast.items())


def _there(claim: Claim, findings: Sequence[Finding]) -> str:
    """The size of the effect in the paper."""
    if claim.paper is not None:
        published = findings[0].published or 0.0
        side = "above" if published > 0 else "below"
        return f"In the paper's Table 2 {claim.paper[0]} is {fixed(abs(published), 1)} BLEU {side} {claim.paper[1]}."
    known = [f"{in_words(f.part, f.published)} ({f.part.says})" for f in findings if f.published is not None]
    return f"In the paper: {listed(known)}." if known else "The paper gives no number."


def gap_in_scale(study: Study, paper: Paper) -> str:
    """How far `study` is from the paper in size, training and text, in words."""
    base = study.by_variant.get(BASE, [])
    gaps = []
    parameters = measure(base, lambda run: run.number("parameters")).mean
    tokens = measure(base, lambda run: run.number("target_tokens")).mean
    if parameters and paper.base.parameters:
        ours = fixed(parameters / 1e6, 2)
        gaps.append(f"{ours} million parameters{_against(parameters, paper.base.parameters * 1e6)}")
    if tokens:
        gaps.append(
            f"{fixed(tokens / 1e6, 2)} million target tokens of training{_against(tokens, paper.base_target_tokens)}"
        )
    corpus = f"the text is {study.data.get('corpus', 'unknown')}, there it is {paper.task}"
    return f"Base here has {' and '.join(gaps)}; {corpus}." if gaps else f"{corpus[:1].upper()}{corpus[1:]}."


def _against(ours: float, theirs: float) -> str:
    if ours > 1.05 * theirs:
        return f" ({times(ours / theirs)} times the paper's)"
    return f" (the paper's has {times(theirs / ours)} times as many)" if theirs > 1.05 * ours else " (as the paper's)"
