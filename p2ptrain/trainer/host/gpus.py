"""Whether this machine shows a GPU, asked of its devices: torch takes seconds to say it, and says
the same where there is none and where it cannot use the one that there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEVICES = Path("/dev")


def has_nvidia_gpu(devices: Path, environment: Mapping[str, str]) -> bool:
    """Whether programs started here find one. A container may have no other than its machine's
    fourth, which is nvidia3 there, too.
    """
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(each.name[6:].isdigit() for each in devices.glob("nvidia*"))
