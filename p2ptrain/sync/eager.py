"""What a peer adds of its own newest work, a whole outer step before the mean of it has come.

With a delay of one outer step, a peer that starts from the shared θ starts without its own last
work. Eager updates (arXiv 2502.12996) let peer m of M take the outer step with

    g = Δ_m(t) ÷ M  +  mean Δ(t − 1)  −  Δ_m(t − 1) ÷ M

so each peer has a θ of its own. The shared θ takes mean Δ(t − 1) alone, and Nesterov's step is
linear in g; so peer m's θ is the shared one and a deviation that obeys the same step, driven by
(Δ_m(t) − Δ_m(t − 1)) ÷ M. That is what is kept here: the replicated state is what it is without
eager updates, and nobody else need know what a peer adds. The inputs of all steps together come
to the newest Δ_m ÷ M, so peers do not drift apart.

1 ÷ M is a peer's guess at its share of a mean that is not agreed yet, and need not be right: what
is taken out later is what was put in. So who is left out, and offers its work again, only replaces
what it had put in; and who joins or restarts begins without a deviation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Eager:
    """One peer's deviation from the shared θ, and what makes it: three vectors of its own."""

    def __init__(self, numel: int) -> None:
        self.deviation = np.zeros(numel, np.float32)
        self.momentum = np.zeros(numel, np.float32)
        self.added = np.zeros(numel, np.float32)

    def step(self, own: Floats, share: float, lr: float, momentum: float) -> None:
        """`own` is Δ_m(t), read now; the shared θ has just taken, or now takes, mean Δ(t − 1).

        `share`: 1 ÷ M. `lr` and `momentum` are the outer optimizer's.
        """
        added = own * np.float32(share)
        fresh = added - self.added
        mu = np.float32(momentum)
        self.momentum *= mu
        self.momentum += fresh
        self.deviation -= np.float32(lr) * (fresh + mu * self.momentum)
        self.added = added


def coasting(momentum: float, steps: int) -> tuple[float, float]:
    """What `steps` outer steps make of a deviation's momentum m that meet with nothing fresh before
    the last of them: it becomes the first of these times m, and the deviation goes on by the second
    times −lr · m. For no steps, (1, 0): what is fresh then corrects what was put in last.
    """
    kept = momentum**steps
    return kept, momentum * momentum * (1 - kept) / (1 - momentum)
