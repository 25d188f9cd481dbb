"""The sync modes, as pure functions: how often, in which pieces and with what delay peers average.

SyncSpec                three numbers and a flag that define a mode
SyncSchedule, DueSteps  at which inner step an outer step reads or merges its fragment
fragments               which elements of the flat vectors are synchronised together
mixing                  combine a merged fragment with weights that were trained in the meantime
eager                   the part of its own work that a peer applies before the mean arrives

Written as (fragments, delay, mixing), plain DiLoCo is (1, 0, 0), Streaming DiLoCo is (P > 1, τ > 0,
α), and one-step-delayed averaging is (1, H, 0). This package does not use torch, sockets or clocks.
The last three modules are not imported here. They need numpy, and code that only reads a manifest
should not have to import numpy.
"""

from p2ptrain.sync.schedule import DueSteps, SyncSchedule
from p2ptrain.sync.spec import SyncSpec

__all__ = ["DueSteps", "SyncSchedule", "SyncSpec"]
