"""The composition root: one process, one trio loop, one nursery of tasks over shared parts.

    learn the run ─► hold the ledger ─► keep θ at its head ─► train, exchange, agree, repeat

Each task is level-triggered: it looks at what is, does the one thing that is due, and waits until
something changes. So it does not matter in which order messages come, or whether one was lost, and
a restarted node goes through the same doors as a newcomer. Nothing here imports torch.
"""

from __future__ import annotations
