"""The micro-batch that fits in memory. Trainers found it after they ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ipc.trainer_config import Halving


@dataclass(frozen=True, slots=True)
class FoundMicroBatch:
    """The contents of the file in the home. `settings` is the digest of the settings for which it
    was found, and `day` the date.
    """

    settings: str
    day: str
    halving: Halving
