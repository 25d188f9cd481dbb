"""Find out from /dev whether this machine has an NVIDIA GPU. Loading torch would take seconds, and
torch does not distinguish a machine without a GPU from a GPU that torch cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEVICES = Path("/dev")


def has_nvidia_gpu(devices: Path, environment: Mapping[str, str]) -> bool:
    """Return whether programs started here find a GPU. The only GPU need not be called nvidia0: a
    container may have only the fourth GPU of its machine, under the name nvidia3."""
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(each.name[6:].isdigit() for each in devices.glob("nvidia*"))
