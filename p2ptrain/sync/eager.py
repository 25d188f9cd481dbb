"""Eager updates: a peer uses its own newest work one outer step before the mean arrives.

With a delay of one outer step, the shared θ does not contain a peer's own last work. Eager updates
(arXiv 2502.12996) let peer m of M take the outer step with

    g = Δ_m(t) ÷ M  +  mean Δ(t − 1)  −  Δ_m(t − 1) ÷ M

So each peer has its own θ. The shared θ uses only mean Δ(t − 1), and Nesterov's step is linear in
g. So peer m's θ is the shared θ plus a deviation that follows the same step, driven by (Δ_m(t) −
Δ_m(t − 1)) ÷ M. This module stores that deviation. The replicated state is the same as without
eager updates, and other peers do not need to know what a peer adds. The inputs of all steps add up
to the newest Δ_m ÷ M, so peers do not drift apart.

1 ÷ M is a peer's estimate of its share of a mean that is not agreed yet. It does not have to be
exact, because the next step removes exactly what was added. A peer that was left out and offers its
work again only replaces what it had added. A peer that joins or restarts begins without a
deviation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Eager:
    """One peer's deviation from the shared θ, its momentum, and the work that it has added."""

    def __init__(self, numel: int) -> None:
        self.deviation = np.zeros(numel, np.float32)
        self.momentum = np.zeros(numel, np.float32)
        self.added = np.zeros(numel, np.float32)

    def step(self, own: Floats, share: float, lr: float, momentum: float) -> None:
        """Take a step with `own`, which is Δ_m(t). At the same time, the shared θ takes a step with
        mean Δ(t − 1).

        `share` is 1 ÷ M. `lr` and `momentum` belong to the outer optimizer.
        """
        added = own * np.float32(share)
        fresh = added - self.added
        mu = np.float32(momentum)
        self.momentum *= mu
        self.momentum += fresh
        self.deviation -= np.float32(lr) * (fresh + mu * self.momentum)
        self.added = added


def coasting(momentum: float, steps: int) -> tuple[float, float]:
    """Return how `steps` outer steps without new work change a deviation. They multiply its
    momentum v by the first result, and add the second result times −lr · v to the deviation.
    `momentum` is the coefficient. For 0 steps the result is (1, 0), which changes nothing."""
    kept = momentum**steps
    return kept, momentum * momentum * (1 - kept) / (1 - momentum)
