"""Draw the run's badge: a small SVG picture with its name and progress, for a README."""

from __future__ import annotations

from xml.sax.saxutils import escape

CHARACTERS_MAX = 48
CHARACTER_WIDTH = 6.6
"""Usual width in pixels of a character of 11 px in the fonts below. The texts are fitted to it."""

PADDING, HEIGHT = 8, 20
ACTIVE, ENDED, SILENT = "#2f7d4f", "#3a6ea5", "#6b6b6b"
"""Colours of a run that goes on, that is complete, and of which nothing is known. White text on
each of them has a contrast of at least 4.5."""


def badge(name: str, *, step: int, steps: int, loss: float | None, known: bool = True) -> str:
    """Return the SVG of a run with this name, at outer step `step` of `steps`."""
    told = f"step {step} of {steps}" if step < steps else f"complete, {steps} steps"
    if not known:
        told = "no news"
    elif loss is not None:
        told += f", loss {loss:.2f}"
    colour = SILENT if not known else ENDED if step >= steps else ACTIVE
    return _drawn(_cut(name), _cut(told), colour)


def _cut(text: str) -> str:
    shown = "".join(each if each.isprintable() else "·" for each in text)
    return shown if len(shown) <= CHARACTERS_MAX else shown[: CHARACTERS_MAX - 1] + "…"


def _drawn(left: str, right: str, colour: str) -> str:
    first, second = (round(len(text) * CHARACTER_WIDTH) + 2 * PADDING for text in (left, right))
    width, words = first + second, escape(f"{left}: {right}", {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'role="img" aria-label="{words}">\n'
        f"<title>{words}</title>\n"
        f'<rect width="{width}" height="{HEIGHT}" rx="4" fill="#333"/>\n'
        f'<path d="M{first} 0h{second - 4}a4 4 0 0 1 4 4v12a4 4 0 0 1-4 4H{first}z" '
        f'fill="{colour}"/>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">\n'
        f"{_text(left, PADDING, first - 2 * PADDING)}\n"
        f"{_text(right, first + PADDING, second - 2 * PADDING)}\n"
        "</g>\n</svg>\n"
    )


def _text(text: str, x: int, width: int) -> str:
    return f'<text x="{x}" y="14" textLength="{width}">{escape(text)}</text>'
