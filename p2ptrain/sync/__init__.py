"""The sync modes, as pure functions: how often, in which pieces and how late peers average.

SyncSpec                three numbers and a choice that name a mode
SyncSchedule, Due       which outer step reads, or merges, which fragment at which inner step
fragments               which elements of the flat vectors are synchronised together
mixing                  combine a merged fragment with weights that were trained meanwhile
eager                   what a peer adds of its own work before its mean has come

Plain DiLoCo is (1, 0, 0), Streaming DiLoCo (P > 1, τ > 0, α), one-step-delayed async (1, H, 0).
Nothing here knows of torch, peers, sockets or time. The last three need numpy and are imported by
their own names, because a manifest that names a mode does not need them.
"""

from p2ptrain.sync.schedule import DueSteps, SyncSchedule
from p2ptrain.sync.spec import SyncSpec

__all__ = ["DueSteps", "SyncSchedule", "SyncSpec"]
