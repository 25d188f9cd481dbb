"""p2ptrain: train one large model on computers that belong to different people.

Importing this package loads nothing: the control plane never pays for torch, nor the trainer for
libp2p.
"""

from __future__ import annotations

__version__ = "0.1.0"
