"""The schedule: the inner steps after which each outer step reads and merges its fragment.

An outer step is one synchronisation of one fragment. With P fragments, each fragment is
synchronised once in H inner steps. Outer step s synchronises fragment s mod P, and reads it H ÷ P
inner steps after outer step s − 1 has read its fragment. The mean is merged τ inner steps later.
With P = 3, H = 6, τ = 1, where r is a read and m a merge:

    inner steps done  1 2 3 4 5 6 7 8 9
    fragment 0        . r m . . . . r m
    fragment 1        . . . r m . . . .
    fragment 2        . . . . . r m . .

In the terms of arXiv 2501.18512: fragment p is read when (t − t_p) mod H = 0; here t_p is (p + 1) H
÷ P.

τ is at most H ÷ P. Outer step s is therefore merged before step s + 1 is merged, and at the latest
when step s + 1 is read. While peers train for a step, at most one earlier one is still undecided.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import counted
from p2ptrain.sync.spec import SyncSpec


@dataclass(frozen=True, slots=True)
class DueSteps:
    """The outer steps whose fragments are read and merged between two inner steps. The read comes
    first, so it does not contain the mean that is merged now."""

    read: int | None
    merge: int | None


@dataclass(frozen=True, slots=True)
class SyncSchedule:
    """A valid schedule. `inner_steps` is H, `fragments` is P, and `overlap_steps` is τ.

    Raises ValueError if the numbers do not form a valid schedule.
    """

    inner_steps: int
    fragments: int = 1
    overlap_steps: int = 0

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.inner_steps < 1 or self.inner_steps % self.fragments:
            raise ValueError(
                f"{counted(self.inner_steps, 'inner step')} cannot be divided among "
                f"{counted(self.fragments, 'fragment')}"
            )
        if not 0 <= self.overlap_steps <= self.stride:
            raise ValueError(
                f"the overlap of {counted(self.overlap_steps, 'inner step')} must be at most the "
                f"stride of {self.stride}"
            )

    @classmethod
    def of(cls, spec: SyncSpec, inner_steps: int) -> SyncSchedule:
        return cls(inner_steps, spec.fragments, spec.overlap_steps)

    @property
    def stride(self) -> int:
        """The number of inner steps in one outer step."""
        return self.inner_steps // self.fragments

    @property
    def delayed(self) -> bool:
        """Whether a fragment is merged when it is next read, so averaging may take a whole step.

        Then local weights are reset to θ at every read, even at the first one, before any merge.
        Without this reset, work that is already being averaged would be read again.
        """
        return self.overlap_steps == self.inner_steps

    def fragment_of(self, outer_step: int) -> int:
        return outer_step % self.fragments

    def due(self, inner_steps_done: int) -> DueSteps:
        """Return what to do after `inner_steps_done` inner steps."""
        return DueSteps(
            self._ending(inner_steps_done), self._ending(inner_steps_done - self.overlap_steps)
        )

    def _ending(self, inner_steps_done: int) -> int | None:
        strides, over = divmod(inner_steps_done, self.stride)
        return None if over or strides < 1 else strides - 1
