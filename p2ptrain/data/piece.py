"""A piece of a document: what readers hand out and packing encodes and splits.

Long documents come in several pieces, so that memory stays bounded and some of a single file can be
held out. Where one is cut nothing ends: a model that is told otherwise learns to stop there. So a
piece says whether its document begins and ends with it, and only there does packing set a mark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that follows that of the piece before it, unless it `begins` a document. By default a
    whole document.
    """

    text: str
    begins: bool = True
    ends: bool = True
