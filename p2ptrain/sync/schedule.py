"""The schedule: the inner steps after which each outer step reads and merges its fragment.

An outer step is one synchronisation of one fragment. With P fragments, a fragment is synchronised
every H inner steps. Outer step s concerns fragment s mod P, and reads it H ÷ P inner steps after
outer step s − 1 read its own. The mean is merged τ inner steps later. With P = 3, H = 6, τ = 1,
where r is a read and m a merge:

    inner steps done  1 2 3 4 5 6 7 8 9
    fragment 0        . r m . . . . r m
    fragment 1        . . . r m . . . .
    fragment 2        . . . . . r m . .

In the terms of arXiv 2501.18512: fragment p is read when (t − t_p) mod H = 0; here t_p is (p + 1) H
÷ P.

τ is at most H ÷ P, so outer step s is merged before s + 1 is merged, and not later than s + 1 is
read. So at most one outer step is being agreed on while the next one is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.sync.spec import SyncSpec


@dataclass(frozen=True, slots=True)
class DueSteps:
    """The outer steps whose fragment is read, and merged, between two inner steps. Reads come
    first: what is merged now is not part of what is read now, unless both belong to the same outer
    step.
    """

    read: int | None
    merge: int | None


@dataclass(frozen=True, slots=True)
class SyncSchedule:
    """`inner_steps` is H; `fragments` and `overlap_steps` are P and τ.

    Raises ValueError for numbers that make no schedule.
    """

    inner_steps: int
    fragments: int = 1
    overlap_steps: int = 0

    def __post_init__(self) -> None:
        if self.fragments < 1 or self.inner_steps < 1 or self.inner_steps % self.fragments:
            raise ValueError(
                f"{self.inner_steps} inner steps, which {self.fragments} fragments cannot share"
            )
        if not 0 <= self.overlap_steps <= self.stride:
            raise ValueError(
                f"an overlap of {self.overlap_steps} inner steps, where a fragment is due "
                f"every {self.stride}"
            )

    @classmethod
    def of(cls, spec: SyncSpec, inner_steps: int) -> SyncSchedule:
        return cls(inner_steps, spec.fragments, spec.overlap_steps)

    @property
    def stride(self) -> int:
        """The inner steps of one outer step."""
        return self.inner_steps // self.fragments

    @property
    def delayed(self) -> bool:
        """Whether a fragment is read again as soon as it is merged: one-step-delayed async.

        Then local weights return to θ at every read, also at the first, where nothing has been
        merged yet: work that has been read is being averaged, and must not be read twice.
        """
        return self.overlap_steps == self.inner_steps

    def fragment_of(self, outer_step: int) -> int:
        return outer_step % self.fragments

    def read_at(self, outer_step: int) -> int:
        """Return how many inner steps a peer has done when it reads this outer step's fragment."""
        return (outer_step + 1) * self.stride

    def merged_at(self, outer_step: int) -> int:
        """Return how many inner steps a peer has done when it merges this outer step's mean."""
        return self.read_at(outer_step) + self.overlap_steps

    def due(self, inner_steps_done: int) -> DueSteps:
        """Return what to do after so many inner steps."""
        return DueSteps(
            self._ending(inner_steps_done), self._ending(inner_steps_done - self.overlap_steps)
        )

    def _ending(self, inner_steps_done: int) -> int | None:
        strides, over = divmod(inner_steps_done, self.stride)
        return None if over or strides < 1 else strides - 1
