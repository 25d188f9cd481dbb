"""The run file that the demo plays: the sample demo.toml, with joiners that begin with nothing.

A volunteer of the demo sends 4 Mbit/s. Members' optimizers take 15 to 28 s to reach the joiner,
and by then the demo's run is nearly over. In a real run an outer step takes much longer.
"""

from __future__ import annotations

import re
from pathlib import Path

from p2ptrain.config.samples import sample

_OPTION = re.compile(r'^join_optimizer = "donors"', re.MULTILINE)


def written(folder: Path) -> Path:
    """Write the demo's run file into `folder` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.toml"
    path.write_text(without_donors(sample("demo")), encoding="utf-8")
    return path


def without_donors(text: str) -> str:
    """Return the demo's run file `text` with `join_optimizer = "fresh"`."""
    changed, count = _OPTION.subn('join_optimizer = "fresh"', text)
    assert count == 1, "demo.toml sets every option"
    return changed
