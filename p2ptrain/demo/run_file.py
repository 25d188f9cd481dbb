"""The demo's run file: the sample demo.toml, but joiners start with an empty inner optimizer.

In the demo, a volunteer's upload is limited to 4 Mbit/s. At that rate, the optimizer states of
members take 15 to 28 s to reach the joiner, and by then the demo's run is nearly over. In a real
run, an outer step takes much longer.
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
    """Return the run file `text`, a variant of demo.toml, with `join_optimizer = "fresh"`."""
    changed, count = _OPTION.subn('join_optimizer = "fresh"', text)
    assert count == 1, "demo.toml must set join_optimizer once"
    return changed
