"""The node: one process with one trio loop, and one nursery of tasks that share a few objects.

    find the run ─► follow the ledger ─► apply its updates to θ ─► train, exchange, agree, repeat

Each task is level-triggered: it looks at the current state, does what is due, and waits until
something changes. So neither the order of messages nor a lost message matters, and a restarted node
follows the same path as a newcomer. This package does not import torch.
"""

from __future__ import annotations
