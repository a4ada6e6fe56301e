"""Which rows the settings of a user reach: a row may have a value of its own, or a model without such an option."""

from __future__ import annotations

from collections.abc import Iterable

from ablations.selection import Selection, with_settings
from ablations.tables import Variant
from repro.config import RunConfig
from repro.errors import UsageError


def without_effect(selection: Selection) -> dict[str, tuple[str, ...]]:
    """The settings of `selection` (profile's included) that leave some of its rows as they are: `key=value` to the ids
    of these rows.

    A setting reaches a row when the row's configuration is another one for it, be it through a width that follows from
    the base's. One that is the base's own value anyway is not listed.
    """
    last = {text.partition("=")[0].strip(): text for text in selection.settings}
    plain, found = selection.scale.base, {}
    whole = with_settings(plain, selection.settings).resolved()
    for key, text in last.items():
        others = [other for other in selection.settings if other.partition("=")[0].strip() != key]
        try:
            base = with_settings(plain, others).resolved()
        except UsageError:
            continue  # the others cannot be without it
        if base.hash() != whole.hash():
            untouched = tuple(row.variant.id for row in selection.rows if _same(row.variant, base, whole))
            if untouched:
                found[text] = untouched
    return found


def notes(selection: Selection) -> list[str]:
    """A line for each set of rows that settings do not reach."""
    settings: dict[tuple[str, ...], list[str]] = {}
    for text, rows in without_effect(selection).items():
        settings.setdefault(rows, []).append(text)
    return [f"{', '.join(texts)}: no effect on {', '.join(rows)} ({_WHY})" for rows, texts in sorted(settings.items())]


def refuse_without_effect(selection: Selection, settings: Iterable[str]) -> None:
    """Raise UsageError when one of `settings` reaches no row of `selection`.

    For a single run only: in a study the settings make the base, which rows that are not asked for now stand beside.
    """
    asked, rows = set(settings), tuple(row.variant.id for row in selection.rows)
    lost = [text for text, untouched in without_effect(selection).items() if text in asked and untouched == rows]
    if lost:
        fix = f"leave it out: {_WHY}"
        raise UsageError(f"{', '.join(lost)} has no effect on {', '.join(rows)}", where="--set", fix=fix)


_WHY = "a row may have its own value, or no such option"


def _same(variant: Variant, base: RunConfig, other: RunConfig) -> bool:
    """Whether `variant` comes to the same run over both bases."""
    try:
        return variant.of(base).hash() == variant.of(other).hash()
    except UsageError:
        return False
