"""A piece of a document: readers produce pieces, and packing encodes and splits them.

Long documents come in several pieces, so that memory stays bounded and a part of a single file can
be held out. A cut is not the end of a document: with a mark there, a model would learn to stop. So
a piece says whether its document begins and ends with it, and packing sets marks only there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that continues the previous piece unless it `begins` a document. By default it is a
    whole document.
    """

    text: str
    begins: bool = True
    ends: bool = True
