"""The micro-batch that fits this machine's memory, as trainers found it after memory ran out."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.ipc.trainer_config import Halving


@dataclass(frozen=True, slots=True)
class FoundMicroBatch:
    """The contents of the home's file. `settings`: digest of the settings it was found under;
    `day`: its date.
    """

    settings: str
    day: str
    halving: Halving
