"""A piece of a document. Readers yield pieces; packing encodes and splits them.

Long documents have several pieces, so that memory stays bounded and a part of a file can be held
out for validation. A piece need not end where its document ends: an end-of-document token there
would teach the model to stop in the middle. So a piece says whether its document begins and ends
with it, and packing adds begin and end tokens only there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document's text, which follows the previous piece unless it `begins` the
    document. By default a piece is a whole document.
    """

    text: str
    begins: bool = True
    ends: bool = True
