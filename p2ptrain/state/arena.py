"""The memory that a node shares with its trainers: θ, which they read, and local, which they write.

θ is the outer state's own memory, so a trainer sees an update as soon as it is applied, without a
copy. The ranks write their weights to `local` after H inner steps, and the ring reads them. The
messages in `ipc` determine which process may access the memory when; this module does not.
"""

from __future__ import annotations

import numpy as np

from p2ptrain.state.outer_state import OuterState
from p2ptrain.state.shared_vector import Float32Vector, SharedVector
from p2ptrain.sync.fragments import Fragment


class Arena:
    """θ of `outer` and a local vector of the same length, which is initially zero.

    Pass `fds` to the trainers with `pass_fds`. `close` does not close θ, which belongs to `outer`.
    """

    def __init__(self, outer: OuterState) -> None:
        self._theta = outer.theta_vector
        self._local = SharedVector(outer.numel, name="p2ptrain-local")
        self.theta, self.local = self._theta.array, self._local.array

    @property
    def fds(self) -> tuple[int, int]:
        """The descriptors of θ and of the local vector."""
        return (self._theta.fd, self._local.fd)

    def side_by_side(self, fragment: Fragment) -> tuple[Float32Vector, Float32Vector]:
        """Return the fragment's θ and local weights, each as one vector: a view or a copy."""
        if len(fragment.ranges) == 1:
            ((start, stop),) = fragment.ranges
            return self.theta[start:stop], self.local[start:stop]
        theta, local = (np.empty(fragment.numel, np.float32) for _ in range(2))
        fragment.gather(self.theta, theta)
        fragment.gather(self.local, local)
        return theta, local

    def close(self) -> None:
        self._local.close()
