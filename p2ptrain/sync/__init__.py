"""The sync modes, as pure functions: how often, in which pieces and with what delay peers average.

SyncSpec                three numbers and a flag that define a mode
SyncSchedule, Due       at which inner step an outer step reads or merges its fragment
fragments               which elements of the flat vectors are synchronised together
mixing                  combine a merged fragment with weights that were trained in the meantime
eager                   what a peer adds of its own work before the mean arrives

Plain DiLoCo is (1, 0, 0), Streaming DiLoCo (P > 1, τ > 0, α), one-step-delayed async (1, H, 0).
This package does not know torch, peers, sockets or time. Import the last three by module name: they
need numpy, which a manifest that names a mode does not need.
"""

from p2ptrain.sync.schedule import DueSteps, SyncSchedule
from p2ptrain.sync.spec import SyncSpec

__all__ = ["DueSteps", "SyncSchedule", "SyncSpec"]
