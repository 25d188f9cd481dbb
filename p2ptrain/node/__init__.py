"""The composition root: one process, one trio loop, one nursery of tasks over shared objects.

    learn the run ─► hold the ledger ─► keep θ at its head ─► train, exchange, agree, repeat

Each task is level-triggered: it looks at the current state, does the one thing that is due, and
waits until something changes. So the order of messages does not matter, nor does a lost message,
and a restarted node follows the same path as a newcomer. Nothing here imports torch.
"""

from __future__ import annotations
