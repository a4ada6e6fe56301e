"""A declared space of configurations, read from a YAML file, and the samples drawn from it.

    space:
      train.learning_rate_factor: {loguniform: [0.1, 3.0]}
      model.dropout: {choice: [0.0, 0.1, 0.3]}
      model.d_ff: {randint: [64, 512]}
    objective: valid/bleu        # or valid/perplexity
    rungs: {grace: 300, reduction: 3}
    budget: 1500                 # steps; without, the base's

Keys are dotted configuration keys of the base. A sample's values follow from the seed, its number and the key, so more
samples leave the first ones as they are.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from ablations.growth import SEARCH
from ablations.selection import Selection, choose_base, rows_of, with_settings
from ablations.tables import Variant
from repro.config import RunConfig
from repro.errors import CheckError, UsageError
from repro.seeds import derive_seed

Objective = Literal["valid/bleu", "valid/perplexity"]
OBJECTIVES: tuple[Objective, ...] = ("valid/bleu", "valid/perplexity")
_PARTS = ("space", "objective", "rungs", "budget")
_NOT_SEARCHED = {
    "train.budget": "it is what ASHA deals out",
    "train.budget_unit": "a search counts in steps",
    "train.evaluate_every": "ASHA compares the samples at the same steps",
    "train.valid_decode": "ASHA compares scores of one kind",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """What one key may be."""

    key: str
    kind: str
    values: tuple[Any, ...]
    line: int
    """Where it stands in the file, from 1."""

    def draw(self, seed: int, number: int) -> Any:
        """The value of sample `number` (from 1)."""
        return DRAWS[self.kind](random.Random(derive_seed("search", seed, number, self.key)), self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """A space with what is searched for in it, and how long."""

    path: Path
    domains: tuple[Domain, ...]
    objective: Objective
    grace: int
    """Steps of the first rung: no sample is stopped before."""
    reduction: int
    """Of the samples that reach a rung one in so many goes on."""
    budget: int | None
    """Steps of the last rung; None: the base's budget."""

    @property
    def mode(self) -> Literal["min", "max"]:
        """Which objective is better."""
        return "max" if self.objective == "valid/bleu" else "min"

    def sample(self, seed: int, number: int) -> list[str]:
        """The `key=value` settings of sample `number`."""
        return [f"{domain.key}={_text(domain.draw(seed, number))}" for domain in self.domains]


def _log_uniform(random: random.Random, bounds: Sequence[float]) -> float:
    low, high = bounds
    return _rounded(math.exp(random.uniform(math.log(low), math.log(high))))


def _uniform(random: random.Random, bounds: Sequence[float]) -> float:
    return _rounded(random.uniform(*bounds))


def _whole(random: random.Random, bounds: Sequence[int]) -> int:
    return random.randint(*bounds)


def _choice(random: random.Random, values: Sequence[Any]) -> Any:
    return random.choice(values)


def _rounded(value: float) -> float:
    """Four digits: more would only make the tables hard to read."""
    return float(f"{value:.4g}")


DRAWS: dict[str, Callable[[random.Random, Any], Any]] = {
    "choice": _choice,
    "uniform": _uniform,
    "loguniform": _log_uniform,
    "randint": _whole,
}
"""The kinds of domains. Bounds belong to the domain."""


def read_space(path: Path) -> Space:
    """The space in the file `path`. Raises CheckError when it is not there, UsageError naming key and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8", where=str(path)) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise UsageError(f"not YAML ({error.problem})", where=f"{path}:{line}") from error
    except (yaml.YAMLError, RecursionError) as error:  # a character that is none of a text, or brackets without end
        raise UsageError(f"not YAML ({str(error).splitlines()[0]})", where=str(path)) from error
    reader = _Reader(path)
    parts = reader.mapping(root, "the file", _PARTS, "write `space:`, `objective:` and `rungs:`")
    for name in _PARTS[:3]:
        if name not in parts:
            raise UsageError(f"{name!r} is missing", where=f"{path}:1", fix="see `ablate search --help`")
    rungs = reader.mapping(parts["rungs"][1], "rungs", ("grace", "reduction"), "e.g. rungs: {grace: 300, reduction: 3}")
    if "grace" not in rungs:
        raise reader.error("rungs lack 'grace'", parts["rungs"][0], "the steps before which no sample is stopped")
    return Space(
        path=path,
        domains=reader.domains(parts["space"][1]),
        objective=reader.objective(*parts["objective"]),
        grace=reader.whole(*rungs["grace"], least=1),
        reduction=reader.whole(*rungs["reduction"], least=2) if "reduction" in rungs else 3,
        budget=reader.whole(*parts["budget"], least=1) if "budget" in parts else None,
    )


class _Reader:
    """Parts of a YAML file, each with its line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def error(self, what: str, node: yaml.Node, fix: str = "") -> UsageError:
        return UsageError(what, where=f"{self._path}:{node.start_mark.line + 1}", fix=fix)

    def mapping(
        self, node: yaml.Node | None, name: str, known: Sequence[str] | None, fix: str
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """The keys of a mapping, which must be of the `known` ones, each with the nodes of its name and its value."""
        if node is None:
            raise UsageError(f"{name} is empty", where=f"{self._path}:1", fix=fix)
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise self.error(f"{name} holds no keys", node, fix)
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.error(f"a key of {name} is no word", key, fix)
            if str(key.value) in found:
                raise self.error(f"{key.value!r} stands twice in {name}", key)
            if known is not None and key.value not in known:
                raise self.error(f"unknown part {key.value!r} of {name}", key, f"known: {', '.join(known)}")
            found[str(key.value)] = (key, value)
        return found

    def value(self, node: yaml.Node) -> Any:
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_document(node)
        except (yaml.YAMLError, ValueError) as error:  # a tag that is not YAML's own, a date that is none
            raise self.error("a value that is no number, text or list", node) from error
        finally:
            loader.dispose()

    def whole(self, key: yaml.Node, node: yaml.Node, *, least: int) -> int:
        value = self.value(node)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(f"{key.value} is {value!r}", key, f"a whole number, the least is {least}")
        return value

    def objective(self, key: yaml.Node, node: yaml.Node) -> Objective:
        value = self.value(node)
        if value not in OBJECTIVES:
            raise self.error(f"objective is {value!r}", key, f"choose {' or '.join(OBJECTIVES)}")
        return cast(Objective, value)

    def domains(self, node: yaml.Node) -> tuple[Domain, ...]:
        keys = self.mapping(node, "space", None, "e.g. model.dropout: {choice: [0.1, 0.3]}")
        return tuple(self._domain(name, key, value) for name, (key, value) in keys.items())

    def _domain(self, name: str, key: yaml.Node, node: yaml.Node) -> Domain:
        example = f"e.g. {name}: {{choice: [1, 2]}}"
        kinds = self.mapping(node, name, None, example)
        if len(kinds) != 1 or next(iter(kinds)) not in DRAWS:
            raise self.error(f"{name} is {', '.join(kinds)}", key, f"one of {', '.join(DRAWS)}, {example}")
        if name in _NOT_SEARCHED or name.startswith("data."):
            raise self.error(f"{name} cannot be searched", key, _NOT_SEARCHED.get(name, "all samples have one corpus"))
        kind, (_, listed) = next(iter(kinds.items()))
        values = self.value(listed)
        if not isinstance(values, list) or not values:
            raise self.error(f"{name}: {kind} needs a list", key, example)
        try:
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:  # a date, infinity
            raise self.error(f"{name}: {kind} holds what is no number and no text", key, example) from error
        if kind != "choice":
            values = [_number(value) for value in values]
            self._check_bounds(name, kind, values, key)
        return Domain(key=name, kind=kind, values=tuple(values), line=key.start_mark.line + 1)

    def _check_bounds(self, name: str, kind: str, values: list[Any], key: yaml.Node) -> None:
        type_ = int if kind == "randint" else (int, float)
        good = len(values) == 2 and all(isinstance(value, type_) and not isinstance(value, bool) for value in values)
        if not good or not values[0] < values[1]:
            numbers = "whole numbers" if kind == "randint" else "numbers"
            raise self.error(f"{name}: {kind} is {values}", key, f"two {numbers}, the lower first")
        if kind == "loguniform" and values[0] <= 0:
            raise self.error(f"{name}: loguniform from {values[0]}", key, "the lower bound must be above 0")


def _number(value: Any) -> Any:
    """`value`, or the number that it is written as: YAML takes 1e-4, without a point, for a text."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def selection_of(
    space: Space, scale: str, *, samples: int, seed: int, settings: Sequence[str] = (), profile: str | None = None
) -> Selection:
    """The first `samples` samples of `space` over the base of `scale`, as the rows of a study.

    Raises UsageError, naming key and line, when the base does not have a key or a drawn value cannot be.
    """
    _check_settings(space, settings)
    budget = [f"train.budget={space.budget}"] if space.budget is not None else []
    place, texts, base = choose_base(SEARCH, scale, [*settings, *budget], profile)
    _check_rhythm(space, base)
    fixed = {text.partition("=")[0].strip() for text in texts}
    follow = [key for key in ("d_k", "d_v") if base.model.family == "transformer" and f"model.{key}" not in fixed]
    variants = []
    for number in range(1, samples + 1):
        drawn = space.sample(seed, number)
        _check_sample(space, base, drawn, number)
        apply = _laid(drawn, follow)
        variants.append(Variant(id=f"search.{number:03d}", group=SEARCH, title=", ".join(drawn), apply=apply))
    return Selection(
        table=SEARCH,
        scale=place,
        settings=texts,
        base=base,
        rows=rows_of(base, variants),
        profile=profile,
        search={
            "objective": space.objective,
            "grace": space.grace,
            "reduction": space.reduction,
            "seed": seed,
            "space": {domain.key: {domain.kind: list(domain.values)} for domain in space.domains},
        },
    )


def _laid(settings: Sequence[str], follow: Sequence[str]) -> Callable[[RunConfig], RunConfig]:
    """A row with `settings` over the base; the widths in `follow` are left to follow from d_model and the heads."""

    def apply(base: RunConfig) -> RunConfig:
        free = with_settings(base, [f"model.{key}=none" for key in follow])
        return with_settings(free, settings)

    return apply


def _check_sample(space: Space, base: RunConfig, settings: Sequence[str], number: int) -> None:
    """Raise UsageError naming the line of the key that the base does not have or take."""
    for domain, text in zip(space.domains, settings, strict=True):
        try:
            with_settings(base, [text])
        except UsageError as error:
            where = f"{space.path}:{domain.line}"
            raise UsageError(f"{domain.key}, sample {number}: {error.what}", where=where, fix=error.fix) from error


def _check_settings(space: Space, settings: Sequence[str]) -> None:
    """Raise UsageError when one of `settings` is of a key that the file decides: it would have no effect."""
    decided = {domain.key: domain.line for domain in space.domains}
    for key in (text.partition("=")[0].strip() for text in settings):
        if key in decided:
            fix = f"every sample has its own from {space.path}:{decided[key]}: leave one of the two out"
            raise UsageError(f"{key} is set and searched", where="--set", fix=fix)
        if key == "train.budget" and space.budget is not None:
            fix = f"{space.path} has `budget: {space.budget}`: leave one of the two out"
            raise UsageError("the budget is set twice", where="--set", fix=fix)


def _check_rhythm(space: Space, base: RunConfig) -> None:
    """Raise UsageError when the base's evaluations do not give ASHA what it compares."""
    train, where = base.train, str(space.path)
    if train.budget_unit != "steps":
        what = f"the budget is counted in {train.budget_unit}"
        raise UsageError(what, where=where, fix="a search needs train.budget_unit=steps")
    if space.grace % train.evaluate_every:
        what = f"grace {space.grace} is no multiple of train.evaluate_every {train.evaluate_every}"
        raise UsageError(what, where=where, fix="samples are compared at evaluations: change one of the two")
    if space.grace >= train.budget:
        what = f"grace {space.grace} is no less than the budget of {train.budget:g} steps"
        raise UsageError(what, where=where, fix="no sample could be stopped: lower grace or raise budget")
    if space.objective == "valid/bleu" and train.valid_decode == "none":
        what = "the objective is valid/bleu and train.valid_decode is none"
        raise UsageError(what, where=where, fix="set train.valid_decode=greedy or search by valid/perplexity")


def _text(value: Any) -> str:
    """A drawn value as `--set` takes it."""
    return value if isinstance(value, str) else json.dumps(value)
