"""The state of this node's trainer, and the work that it has finished. Written by `training/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.archive.own_claims import OwnClaim, OwnClaims
from p2ptrain.ids import PeerId
from p2ptrain.ipc.frames import Progress
from p2ptrain.ipc.trainer_config import Halving
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.observe.states import Training
from p2ptrain.peers.heartbeat import ReadyReport
from p2ptrain.peers.outside.sample_book import SampleBook
from p2ptrain.peers.validation_tally import ValidationTally
from p2ptrain.ring import Contribution
from p2ptrain.state import Arena
from p2ptrain.sync.trainer_orders import LocalWork


@dataclass(frozen=True, slots=True)
class FoundMicroBatch:
    """The micro-batch that fits this machine's memory, found after a trainer ran out of memory.
    `settings` is the digest of the settings for which it was found, and `day` is the date."""

    settings: str
    day: str
    halving: Halving


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """A claim of this node and the bytes of its contribution. `is_restored`: they come from the
    disk of this restarted node, and the arena does not have the work."""

    made: OwnClaim
    contribution: Contribution
    is_restored: bool = False


@dataclass(slots=True)
class TrainerState:
    validation: ValidationTally
    """The validation losses of θ that members report."""
    arena: Arena | None = None
    """The memory shared with the trainer; None on a seed, which has no trainer."""
    work: LocalWork | None = None
    """The finished work that this node offers for the next reduce."""
    claims: OwnClaims | None = None
    """This node's claims on disk; None on a seed, and in a run without claims."""
    claimed: ClaimedWork | None = None
    """The claim about `work`. In a run with claims, there is one whenever there is work."""
    inner_step: int = 0
    inner_steps: int = 0
    tokens_per_s: float = 0.0
    progress: Progress | None = None
    """The trainer's report of its newest inner step."""
    inner_s: float = 0.0
    """Seconds spent in inner steps since this node started."""
    up: bool = False
    """True while a trainer that has sent Hello is running."""
    device: str = ""
    """The device that the trainer runs on, in words."""
    halving: FoundMicroBatch | None = None
    """The micro-batch found after the trainer ran out of memory."""
    theta_in_use: bool = False
    """True while the trainer may still read θ: for an order, an evaluation, or a sample."""
    samples: SampleBook = field(default_factory=SampleBook)
    """The newest texts that the model wrote, here and at other members."""

    @property
    def ready(self) -> ReadyReport | None:
        """The report of `work` in our heartbeats; None while there is no finished work."""
        work, claimed = self.work, self.claimed
        if work is None:
            return None
        said = None if claimed is None else claimed.made.said
        return ReadyReport(work.step, work.tokens, len(work.blocks), said)

    def report_of(self, me: PeerId) -> Ready | None:
        """Return the same report, as an event for our own ledger."""
        told = self.ready
        return None if told is None else Ready(me, told.step, told.tokens, told.blocks, told.claim)

    @property
    def shown(self) -> Training:
        """The state to show in the status while the trainer is training."""
        return Training(self.inner_step, self.inner_steps)

    def begin_inner_steps(self, before: int, until: int) -> None:
        """Note that `before` of `until` inner steps are done, and that the trainer continues."""
        self.inner_step, self.inner_steps = before, until

    def note_progress(self, progress: Progress, computed_s: float, *, ahead: bool) -> None:
        """Note an inner step that took `computed_s` seconds. If it is `ahead` (its blocks belong to
        an outer step that the ledger has not reached), `inner_step` does not change."""
        self.inner_s += computed_s
        self.progress, self.tokens_per_s = progress, progress.tokens_per_s
        if not ahead:
            self.inner_step += 1

    def note_end(self) -> None:
        """Reset the fields that describe a running trainer, because it has ended. Its finished work
        is still in the arena, and stays valid."""
        self.up, self.theta_in_use, self.tokens_per_s = False, False, 0.0

    def discard_work(self) -> None:
        """Stop offering the finished work. `reduce/` calls this if the work cannot be averaged, and
        `outer_state/` if the work was trained on a wrong θ."""
        self.work = self.claimed = None
