"""Fit text from peers into the cells of a terminal, so that it cannot move or hide other text.

A terminal obeys control characters, reorders a line that contains right-to-left letters, draws
combining marks over the neighbouring cell, and gives some letters two cells. In a table, each of
these would let one peer change what the line seems to say about another peer. So all of these
characters become a dot, except wide letters, whose two cells are counted.
"""

from __future__ import annotations

import unicodedata

DOT = "·"
LEFT_TO_RIGHT = {"L", "EN", "ES", "ET", "CS", "ON", "WS", ""}
"""The bidirectional classes of characters that do not reorder a line. "" is the class of
unknown characters, which are replaced because they are not printable."""

READ_MAX = 4096
"""Maximum number of characters that are looked at. No terminal is that wide."""


def fitted(text: str, width: int) -> str:
    """Return `text` in at most `width` cells, with an ellipsis if it was cut."""
    shown, used = list[str](), 0
    for letter in text[:READ_MAX]:
        letter = letter if _is_inert(letter) else DOT
        cells = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if used + cells > width:
            return _cut(shown, width)
        shown.append(letter)
        used += cells
    return "".join(shown) if len(text) <= READ_MAX else _cut(shown, width)


def padded(text: str, width: int) -> str:
    """Return `text` in exactly `width` cells, padded with spaces."""
    shown = fitted(text, width)
    return shown + " " * (width - cells_of(shown))


def cells_of(text: str) -> int:
    """Return the number of cells of a text without control characters and combining marks."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _cut(shown: list[str], width: int) -> str:
    while shown and cells_of("".join(shown)) > width - 1:
        shown.pop()
    return "".join(shown) + "…" if width > 0 else ""


def _is_inert(letter: str) -> bool:
    if letter.isascii():
        return letter.isprintable()
    return (
        letter.isprintable()
        and not unicodedata.combining(letter)
        and unicodedata.category(letter) not in ("Mn", "Me")
        and unicodedata.bidirectional(letter) in LEFT_TO_RIGHT
    )
