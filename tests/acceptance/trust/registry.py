"""The parts of `scripts/trust` by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.acceptance.measures.setting import Line
from tests.acceptance.trust import judged_steps, lengths, proofs_at_theta, texts

Part = Callable[[], Iterator[Line]]
"""Yields a line for each result. Its name must be in the line's measure."""

PARTS: dict[str, Part] = {
    "hidden-states": proofs_at_theta.lines,
    "texts": texts.lines,
    "sketches": lengths.lines,
    "links": judged_steps.lines,
}
