"""Bound the values that the page shows. Many of the strings in them come from peers."""

from __future__ import annotations

import math
from collections.abc import Mapping

TEXT_CHARACTERS_MAX = 400
"""Maximum length of a text: longer than any sentence that a node of this version writes."""

ITEMS_MAX = 512
"""Maximum number of items in a list or object: more than the largest run has members."""

DEPTH_MAX = 8
"""Maximum depth of nested values. Deeper ones are left out. The status has four levels."""

DIGITS = 6
"""Significant digits of a number. A chart shows three, and more digits only cost bytes."""


def text(value: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return one line of printable text. Control characters and marks that change the direction of
    writing become `·`."""
    whole = value[:characters_max]
    shown = whole if whole.isprintable() else "".join(map(_printable, whole))
    return shown + "…" if len(value) > characters_max else shown


def lines(value: str, characters_max: int) -> str:
    """Return `value` as `text` does, but keep its line breaks."""
    return "\n".join(text(each) for each in value[:characters_max].split("\n"))


def _printable(letter: str) -> str:
    return letter if letter.isprintable() else "·"


def number(value: float) -> float | None:
    """Return a rounded number; None if JSON cannot represent it. Times in Unix seconds keep their
    hundredths."""
    if not math.isfinite(value):
        return None
    return round(value, 2) if abs(value) >= 10**DIGITS else float(f"{value:.{DIGITS}g}")


def plain(value: object, depth: int = DEPTH_MAX) -> object:
    """Return a bounded copy of a JSON value."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return number(value)
        case str():
            return text(value)
        case Mapping() if depth:
            found = list(value.items())[:ITEMS_MAX]
            return {text(str(name), 80): plain(each, depth - 1) for name, each in found}
        case list() | tuple() if depth:
            return [plain(each, depth - 1) for each in value[:ITEMS_MAX]]
        case _:
            return None
