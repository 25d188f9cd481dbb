"""A piece of a document. Readers yield pieces; packing encodes and splits them.

Long documents have several pieces, so that memory stays bounded and a part of a file can be held
out. The end of a piece need not be the end of a document: with a mark there, a model would learn to
stop. So a piece says whether its document begins and ends with it, and packing sets marks only
there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that continues the previous piece, unless it `begins` a document. By default a piece is
    a whole document.
    """

    text: str
    begins: bool = True
    ends: bool = True
