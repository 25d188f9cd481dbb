"""Error feedback: this peer's own rounding errors, to be added to its next contribution.

A reduce can fail and be repeated, so its errors are kept in `aside` until its outer step has ended.
`owed` holds the errors of the committed attempt, even if that attempt did not finish on this peer.
This is correct because the mean needs this peer's sums: when the mean was complete, this peer had
finished rounding, and everything that it owed was in the mean.

The unit is the ring's: the mean times the number of participants, no matter what their weights are.
If the number of participants changes between two reduces, `owed` is rescaled.

The residual is kept only in this process. A restarted process starts with zeros, so it loses only
the errors of one reduce.
"""

from __future__ import annotations

import numpy as np

from p2ptrain.state.shared_vector import SharedVector


class Residual:
    """The vectors `owed` and `aside`. From `begun` until the reduce is over, the ring reads `owed`
    and writes `aside`; do not call other methods during that time.
    """

    def __init__(self, numel: int) -> None:
        self._vectors = [SharedVector(numel, name="p2ptrain-residual") for _ in range(2)]
        self.owed, self.aside = (vector.array for vector in self._vectors)
        self._open: tuple[int, int] | None = None
        self.peers = 1
        """Number of participants of the newest reduce. `owed` divided by this number is the error
        of the mean that this peer caused.
        """

    @property
    def open_step(self) -> int | None:
        """The outer step of the reduce whose outcome is still unknown; None if all are known."""
        return None if self._open is None else self._open[0]

    def begun(self, step: int, attempt: int, peers: int) -> None:
        """Prepare `aside` for a reduce of `peers` participants; errors of an earlier attempt are
        discarded. `aside` starts as a copy of `owed`, because elements that are not rounded in this
        reduce stay owed.
        """
        assert self._open is None or self._open[0] == step, (
            "`ended` was not called for the previous outer step"
        )
        if peers != self.peers:
            self.owed[:] *= np.float32(peers / self.peers)
        np.copyto(self.aside, self.owed)
        self._open, self.peers = (step, attempt), peers

    def cut_short(self, most: float) -> None:
        """Handle a reduce that did not finish on this peer. If elements of `aside` exceed `most`,
        the maximum error of correct rounding, they come from invalid numbers. In this case set
        `aside` to zero, since later reduces would refuse a contribution that includes these errors,
        and blame this peer.
        """
        if not (-most <= self.aside.min() and self.aside.max() <= most):  # true for NaN as well
            self.aside[:] = 0

    def ended(self, committed: int | None) -> None:
        """Record that the open step ended with the commit of attempt `committed`, or was skipped
        (None). If `committed` is the newest attempt in which we took part, `aside` becomes `owed`;
        otherwise `owed` does not change.
        """
        assert self._open is not None, "no reduce is open"
        if committed == self._open[1]:
            self.owed, self.aside = self.aside, self.owed
        self._open = None

    def forget(self) -> None:
        """Set `owed` to zero, because the step's outcome is unknown. Adding the errors twice would
        be worse than losing them.
        """
        self.owed[:] = 0
        self._open = None

    def close(self) -> None:
        for vector in self._vectors:
            vector.close()
