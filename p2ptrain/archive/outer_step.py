"""The terms of the run in one outer step, with amendments applied, and what follows from them.

All peers train and average an outer step under the same terms (SPEC.md S10). An `OuterStep`
contains all these terms. It is created once, when the step begins or a past update is replayed, and
is then passed to all functions that need it. So no function looks terms up by the step's number.

An `OuterStep` is the same on all peers. The roster of each attempt says who takes part in the
average and with which schedule, and the ledger's state says which blocks a member has to train.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from p2ptrain import kernels
from p2ptrain.archive.amendments import Agreed, Amendments
from p2ptrain.archive.update_format import UpdateFormat, payload_bytes_mean, published_formats
from p2ptrain.ids import RunId
from p2ptrain.ipc.frames import Rates
from p2ptrain.run import Leg, OuterSpec, RunManifest
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.trainer_orders import LeasePace

KEPT_MAX = 4
"""Number of outer steps to cache: the one in progress, the one being applied, the one whose θ the
trainer has, and a spare. A replay uses each step only once, so a larger cache would not help."""


@dataclass(frozen=True, slots=True)
class OuterStep:
    """The terms of outer step `step`."""

    leg: Leg
    """The run as amended up to this step."""
    update: UpdateFormat
    """The format of this step's update."""
    fragment_index: int
    """The index of this step's fragment among all fragments of θ."""

    @property
    def step(self) -> int:
        return self.update.step

    @property
    def manifest(self) -> RunManifest:
        return self.leg.manifest

    @property
    def fragment(self) -> Fragment:
        """The part of θ that this step averages."""
        return self.update.fragment

    @property
    def codec(self) -> kernels.Codec:
        return self.update.codec

    @property
    def influence_max(self) -> float:
        """Maximum distance of each element of a participant's weights from θ."""
        return self.update.influence_max

    @property
    def rates(self) -> OuterSpec:
        """The outer learning rate and momentum with which the update is applied."""
        return self.manifest.outer

    @property
    def pace(self) -> LeasePace:
        """The number of blocks of a lease (the data that a member may train on) for this step, and
        for the overlap with the next step.
        """
        return LeasePace(self.manifest.blocks_per_step, self.manifest.sync.overlap_steps)

    @property
    def first_inner_step(self) -> int:
        """Number of inner steps before this outer step, for a peer that took part from the
        start."""
        return self.leg.first_inner_step(self.step)

    @property
    def inner_rates(self) -> Rates:
        """The learning rate of inner steps, and the pace of its schedule."""
        return inner_rates(self.leg)


def inner_rates(leg: Leg) -> Rates:
    """Return the learning rate of inner steps under these terms, and the pace of its schedule."""
    lr, now, then = leg.manifest.inner.lr, leg.manifest.blocks_per_step, leg.published_stride
    since, reached = leg.inner_step, leg.step * then
    if (since, now) == (reached, then):
        return Rates(lr)
    return Rates(lr, since, reached, now, then)


class OuterSteps:
    """The outer steps of one run. Each is created once per list of agreed amendments."""

    def __init__(self, run: RunId, manifest: RunManifest, amendments: Amendments) -> None:
        self._published = published_formats(run, manifest)
        self._amendments = amendments
        self._agreed: Agreed = ()
        self._made: dict[int, OuterStep] = {}
        """The most recently created steps, for the amendments in `_agreed`."""

    def at(self, agreed: Agreed, step: int) -> OuterStep:
        """Return outer step `step`. Call `Amendments.missing` first.

        Raises RemoteProtocolError: a quorum certified terms that differ from the signed amendment.
        """
        if agreed != self._agreed:
            self._agreed, self._made = agreed, {}
        if step not in self._made:
            while len(self._made) >= KEPT_MAX:
                del self._made[next(iter(self._made))]
            self._made[step] = self._make(agreed, step)
        return self._made[step]

    def _make(self, agreed: Agreed, step: int) -> OuterStep:
        leg, index = self._amendments.leg(agreed, step), step % len(self._published)
        update = replace(
            self._published[index],
            step=step,
            spec=leg.manifest.codec,
            influence_max=self._amendments.influence_max(agreed, step),
        )
        return OuterStep(leg, update, index)

    def payload_bytes_about(self, agreed: Agreed, step: int) -> int:
        """Estimate the mean length of updates around outer step `step`, in bytes, from the
        amendments that this node has.
        """
        spec = self._amendments.nearest(agreed, step).manifest.codec
        return payload_bytes_mean([replace(each, spec=spec) for each in self._published])
