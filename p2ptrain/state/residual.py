"""What this peer's own rounding has lost, to be added to its next contribution (error feedback).

A reduce can fail and be repeated, so what it loses is set aside until its update is committed: only
then is it owed. In the ring's units: those of the mean, times the number of participants.

It is this process's alone. Whoever restarts owes nothing, which costs one rounding and no more.
"""

from __future__ import annotations

from p2ptrain.ids import Digest
from p2ptrain.state.shared_vector import Float32Vector, SharedVector


class Residual:
    """`owed` is read by the ring, and `aside` written. Never at the same time as `committed`."""

    def __init__(self, numel: int) -> None:
        self._owed = SharedVector(numel, name="p2ptrain-residual")
        self._aside = SharedVector(numel, name="p2ptrain-residual")
        self._of: Digest | None = None

    @property
    def owed(self) -> Float32Vector:
        return self._owed.array

    @property
    def aside(self) -> Float32Vector:
        return self._aside.array

    def begun(self) -> None:
        """A reduce writes into `aside` from now on; what another left there is void."""
        self._of = None

    def set_aside(self, update: Digest) -> None:
        """The reduce ended in `update`, and `aside` is what we lost in it."""
        self._of = update

    def committed(self, update: Digest) -> bool:
        """`update` is committed: what was lost in it is owed from now on. False if we took no part
        in it, and go on owing what we owed.
        """
        if update != self._of:
            return False
        self._owed, self._aside = self._aside, self._owed
        self._of = None
        return True

    def close(self) -> None:
        self._owed.close()
        self._aside.close()
