"""p2ptrain: train one large model on computers that belong to different people.

Importing this package does not load submodules: the control plane must not load torch, and the
trainer must not load libp2p.
"""

from __future__ import annotations

__version__ = "0.1.0"
