"""What a user asked for: a table at a scale with settings, worked out into one configuration a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ablations.scales import Scale, scale_of
from ablations.tables import Variant, select, table_name
from repro.config import RunConfig
from repro.config.differences import LABELS
from repro.config.profiles import profile_settings
from repro.config.schema import replace_key
from repro.errors import UsageError

_FIXED = {
    "variant": "choose rows with --only",
    "table": "name it as the argument",
    "scale": "choose it with --scale",
    "seed": "choose it with --seed or --seeds",
    "data.digest": "it follows from the corpus",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One variant over the selection's base."""

    variant: Variant
    config: RunConfig
    """Resolved; its seed is the base's, `with_seed` gives another."""
    changes: Mapping[str, Any]
    """What differs from the base: dotted key to value."""
    same_as: str | None
    """The id of an earlier row that comes to the same configuration here, and so to the same runs."""

    def with_seed(self, seed: int) -> RunConfig:
        """The configuration of this row's run with `seed`."""
        return dataclasses.replace(self.config, seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Rows of a table at a scale."""

    table: str
    scale: Scale
    settings: tuple[str, ...]
    """The `key=value` texts laid over the scale's base, those of `profile` first."""
    base: RunConfig
    rows: tuple[Row, ...]
    profile: str | None = None
    """The profile that the base has, by name."""
    search: Mapping[str, Any] | None = None
    """What a search looks for and how, where the rows are its samples."""

    def with_data(self, digest: str) -> Selection:
        """The same rows over the prepared corpus with `digest`."""
        base = dataclasses.replace(self.base, data=dataclasses.replace(self.base.data, digest=digest))
        return dataclasses.replace(self, base=base, rows=rows_of(base, [row.variant for row in self.rows]))


def choose(
    table: str,
    scale: str,
    *,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    settings: Iterable[str] = (),
    profile: str | None = None,
) -> Selection:
    """The rows of `table` (those in `only`, less those in `skip`) at `scale`.

    The base is changed by `profile`, then by `settings`.

    Raises UsageError for an unknown table, scale, variant, profile or key, and for a row that cannot be built.
    """
    name = table_name(table)
    place, texts, base = choose_base(name, scale, settings, profile)
    rows = rows_of(base, select(name, only, skip))
    return Selection(table=name, scale=place, settings=texts, base=base, rows=rows, profile=profile)


def choose_base(
    table: str, scale: str, settings: Iterable[str], profile: str | None
) -> tuple[Scale, tuple[str, ...], RunConfig]:
    """The scale, the settings laid over its base (those of `profile` first), and that base, resolved."""
    place = scale_of(scale)
    texts = (*(profile_settings(profile, place.base.document()) if profile else ()), *settings)
    base = dataclasses.replace(with_settings(place.base, texts), table=table)
    try:
        return place, texts, base.resolved()
    except UsageError as error:
        raise UsageError(error.what, where=f"base of scale {scale}, {error.where}", fix=error.fix) from error


def with_settings(base: RunConfig, settings: Iterable[str]) -> RunConfig:
    """`base` with each `key=value` of `settings` laid over it in turn. Raises UsageError."""
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{text!r} is not key=value", where="--set", fix="e.g. --set train.budget=500")
        if key in _FIXED:
            raise UsageError(f"{key!r} cannot be set", where="--set", fix=_FIXED[key])
        base = replace_key(base, key, value.strip())
    return base


def rows_of(base: RunConfig, variants: Iterable[Variant]) -> tuple[Row, ...]:
    """One row a variant over `base`; those that come to the same configuration as an earlier one say so."""
    plain = _flat(base.document())
    first: dict[str, str] = {}
    rows = []
    for variant in variants:
        config = variant.of(base)
        earlier = first.setdefault(config.hash(), variant.id)
        rows.append(
            Row(
                variant=variant,
                config=config,
                changes=_changes(plain, _flat(config.document())),
                same_as=None if earlier == variant.id else earlier,
            )
        )
    return tuple(rows)


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration's document with dotted keys, without the labels outside a run's identity."""
    values: dict[str, Any] = {}
    for key, value in document.items():
        values.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return {key: value for key, value in values.items() if key not in LABELS}


def _changes(base: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in base or base[key] != value}
