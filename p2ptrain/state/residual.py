"""What this peer's own rounding has lost, to be added to its next contribution (error feedback).

A reduce can fail and be repeated, so what it loses is set aside until its outer step has ended:
owed is what was lost in the attempt that was committed. Whether this peer saw that attempt to its
end is no matter. No mean is complete without our sums, so whoever has committed one has been paid
all that we owed, and our own rounding was over by then.

In the ring's units: those of the mean, times the number of participants, whatever they weigh. Where
that number changes from one reduce to the next, what is owed is rescaled.

It is this process's alone. Whoever restarts owes nothing, which costs one rounding and no more.
"""

from __future__ import annotations

import numpy as np

from p2ptrain.state.shared_vector import Float32Vector, SharedVector


class Residual:
    """`owed` is read by the ring, and `aside` written, from `begun` until the reduce is over. Other
    methods are for the time in between.
    """

    def __init__(self, numel: int) -> None:
        self._owed = SharedVector(numel, name="p2ptrain-residual")
        self._aside = SharedVector(numel, name="p2ptrain-residual")
        self._open: tuple[int, int] | None = None
        self._peers = 1

    @property
    def owed(self) -> Float32Vector:
        return self._owed.array

    @property
    def aside(self) -> Float32Vector:
        return self._aside.array

    @property
    def peers(self) -> int:
        """Of the newest reduce: of its mean, `owed` is this many times what is lacking."""
        return self._peers

    @property
    def open_step(self) -> int | None:
        """The outer step of a reduce of which it is still to be said whether it was committed."""
        return None if self._open is None else self._open[0]

    def begun(self, step: int, attempt: int, peers: int) -> None:
        """A reduce of so many participants writes into `aside` from now on; what an earlier attempt
        left there is void. What is not rounded is not paid, and goes on being owed.
        """
        assert self._open is None or self._open[0] == step, "an outer step has ended untold"
        if peers != self._peers:
            self.owed[:] *= np.float32(peers / self._peers)
        np.copyto(self.aside, self.owed)
        self._open, self._peers = (step, attempt), peers

    def cut_short(self, most: float) -> None:
        """The reduce did not come to its end here. If it was because of numbers of which rounding
        loses more than `most`, which is more than it can, these are lost and not owed: later
        reduces would refuse them as ours.
        """
        if not (-most <= self.aside.min() and self.aside.max() <= most):  # nor if one is NaN
            self.aside[:] = 0

    def ended(self, committed: int | None) -> None:
        """The open step has ended with this attempt; None if it was skipped. If it is another than
        the newest that we took part in, we go on owing what we owed.
        """
        assert self._open is not None, "no reduce is open"
        if committed == self._open[1]:
            self._owed, self._aside = self._aside, self._owed
        self._open = None

    def forget(self) -> None:
        """Nobody can say how the open step has ended. Better owe too little than pay twice."""
        self.owed[:] = 0
        self._open = None

    def close(self) -> None:
        self._owed.close()
        self._aside.close()
