"""How often, in which pieces and how late peers average: the sync modes, as pure functions.

SyncSpec                three numbers and two choices that name a mode
SyncSchedule, Due       which outer step reads, or merges, which fragment at which inner step
fragments               which elements of the flat vectors are synchronised together
mixing                  a merged fragment meets the weights that went on meanwhile
eager                   what a peer adds of its own work before the mean of it has come
merging                 `rda`, the other way to make one pseudo-gradient of many
radial                  the same for a ring, and to the same bits on all peers

Plain DiLoCo is (1, 0, 0), Streaming DiLoCo (P > 1, τ > 0, α), one-step-delayed async (1, H, 0).
Nothing here knows of torch, peers, sockets or time. The last five need numpy and are imported by
their own names, since a manifest that names a mode needs none.
"""

from p2ptrain.sync.schedule import Due, SyncSchedule
from p2ptrain.sync.spec import Merge, SyncSpec

__all__ = ["Due", "Merge", "SyncSchedule", "SyncSpec"]
