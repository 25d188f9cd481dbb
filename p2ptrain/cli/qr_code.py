"""Draw a QR code in a terminal.

Each character shows two modules, one above the other. The colours are set explicitly: with the
terminal's own colours, the code would be inverted on a dark background, and many phones could not
read it.
"""

from __future__ import annotations

from collections.abc import Iterator

QUIET = 2
"""Modules of white border. The standard asks for four, but phones need two, and terminals are
small."""

_BLOCKS = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
"""The character for an upper and a lower module, where 1 is dark. White is the foreground."""

_ON, _OFF = "\033[97;40m", "\033[0m"


def qr_lines(text: str) -> Iterator[str]:
    """Yield the lines of the QR code of `text`, with escape sequences for its colours."""
    for line in qr_blocks(text):
        yield f"{_ON}{line}{_OFF}"


def qr_blocks(text: str) -> Iterator[str]:
    """Yield the lines of the QR code of `text` in white blocks, for a black background."""
    import segno

    # The text has a checksum of its own, so the lowest level of error correction is enough.
    code = segno.make(text, error="l", boost_error=False, micro=False)
    rows = [tuple(row) for row in code.matrix_iter(border=QUIET)]
    rows += [(0,) * len(rows[0])] * (len(rows) % 2)
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        yield "".join(_BLOCKS[pair] for pair in zip(upper, lower, strict=True))
