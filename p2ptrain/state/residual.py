"""Error feedback: what this peer's own rounding has lost, to be added to its next contribution.

A reduce can fail and be repeated, so its losses are set aside until its outer step has ended.
`owed` is what was lost in the committed attempt, even if this peer did not see that attempt's end.
No mean is complete without this peer's sums. So every committed mean contains all that was owed,
and this peer's own rounding was finished by then.

The units are the ring's: those of the mean, times the number of participants, whatever their
weights. If that number changes from one reduce to the next, `owed` is rescaled.

The residual is private to this process. A restarted process owes nothing, which loses one rounding
and no more.
"""

from __future__ import annotations

import numpy as np

from p2ptrain.state.shared_vector import Float32Vector, SharedVector


class Residual:
    """From `begun` until the reduce is over, the ring reads `owed` and writes `aside`. Call the
    other methods only outside that time.
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
        """Participants of the newest reduce; `owed` is this many times what its mean lacks."""
        return self._peers

    @property
    def open_step(self) -> int | None:
        """The outer step of a reduce whose outcome is still unknown; None if there is none."""
        return None if self._open is None else self._open[0]

    def begun(self, step: int, attempt: int, peers: int) -> None:
        """Prepare `aside` for a reduce of so many participants; an earlier attempt's content is
        void. It starts as a copy of `owed`, because what is not rounded in this reduce stays owed.
        """
        assert self._open is None or self._open[0] == step, "an outer step has ended untold"
        if peers != self._peers:
            self.owed[:] *= np.float32(peers / self._peers)
        np.copyto(self.aside, self.owed)
        self._open, self._peers = (step, attempt), peers

    def cut_short(self, most: float) -> None:
        """The reduce did not finish here. If elements of `aside` exceed `most`, which correct
        rounding cannot lose, they come from bad numbers. Then set `aside` to zero, since later
        reduces would refuse such a contribution as this peer's fault.
        """
        if not (-most <= self.aside.min() and self.aside.max() <= most):  # also if one is NaN
            self.aside[:] = 0

    def ended(self, committed: int | None) -> None:
        """The open step has ended with the attempt `committed`, or was skipped (None). Take over
        `aside` if it was the newest attempt that we took part in; otherwise `owed` stays as it was.
        """
        assert self._open is not None, "no reduce is open"
        if committed == self._open[1]:
            self._owed, self._aside = self._aside, self._owed
        self._open = None

    def forget(self) -> None:
        """Set `owed` to zero: the step's outcome is unknown, and paying twice would be worse."""
        self.owed[:] = 0
        self._open = None

    def close(self) -> None:
        self._owed.close()
        self._aside.close()
