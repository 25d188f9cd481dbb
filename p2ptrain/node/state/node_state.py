"""The state of the node as its user and its peers see it. Written by `control/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.availability.decision import Pause
from p2ptrain.availability.usage import Usage
from p2ptrain.availability.wishes import Wishes
from p2ptrain.ids import PeerId
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import (
    FOR_OTHERS,
    Exchanging,
    FetchingSnapshot,
    Isolated,
    Leaving,
    Paused,
    Serving,
    StandingBy,
    Starting,
    State,
    Stopped,
    Training,
)
from p2ptrain.observe.waits import Wait
from p2ptrain.peers.series.step_report import StepReport


@dataclass(slots=True)
class NodeState:
    journal: Journal
    started_s: float
    """When this node started, by the context's clock, in seconds."""
    current: State = field(default_factory=Starting)
    """The newest state that a task set. `shown` may return a different one."""
    leaving: bool = False
    """True once this node has begun to leave the run."""
    wait: Wait | None = None
    """The ledger's reason to wait. None before the first look, and after the end of the run."""
    isolated: str = ""
    """Why no quorum can currently be reached; empty if a quorum can be reached."""
    wishes: Wishes = field(default_factory=Wishes)
    """The owner's wishes: pauses, a schedule and limits."""
    pause: Pause | None = None
    """Why this node must not train now; None if it may."""
    finishing: int | None = None
    """This node's committed tokens when its owner asked it to leave after its next contribution;
    None if the owner has not asked."""
    stopped: str = ""
    """Why the organiser has ended the run; empty unless that is agreed and has taken effect."""
    usage: Usage = field(default_factory=Usage)
    """The bytes of bulk data that this node has moved today."""
    unavailable: tuple[str, ...] = ()
    """The facts that the owner's wishes need and this machine does not report, in words."""
    own_report: StepReport | None = None
    """Our report on the newest outer step, which our heartbeats contain."""
    arrived: dict[PeerId, StepReport] = field(default_factory=dict)
    """The newest reports of members that the series does not contain yet."""

    def shown(self, fetching: FetchingSnapshot | None = None) -> State:
        """Return the state for the status and for heartbeats. `fetching`: the progress of a
        snapshot that is being fetched.

        A paused node shows its pause, unless it still exchanges the work that it finished before.
        While a node has nothing to do but wait for the others, the ledger's reason is shown.
        Without a quorum, a node that waits or serves is shown as isolated; a node that still trains
        is shown as training. While a snapshot is fetched, that is shown, even if a trainer is
        loading: the fetch takes longer."""
        if self.leaving:
            return self.current
        if fetching is not None:
            return fetching
        if self.stopped:
            return Stopped(self.stopped)
        if self.pause is not None and not isinstance(self.current, Exchanging):
            return Paused(self.pause.reason)
        waits = isinstance(self.current, StandingBy | Serving)
        if waits and self.isolated:
            return Isolated(self.isolated)
        if self.current == StandingBy(FOR_OTHERS) and self.wait is not None:
            return StandingBy(self.wait.who)
        return self.current

    def note_report(self, peer: PeerId, report: StepReport) -> None:
        """Keep the report of a member until the series contains it. `gossip/` calls this."""
        self.arrived[peer] = report

    def set_state(self, state: State) -> None:
        """Change the state, and journal it if its name changes. Any task may call this.

        A leaving node stays in `Leaving`, whatever its tasks still do."""
        if self.leaving and not isinstance(state, Leaving):
            return
        if state.name != self.current.name:
            self.journal.write("state", state=state.name)
        self.current = state

    def set_state_unless_training(self, state: State) -> None:
        """Change the state unless the node trains, exchanges or serves, which tells users more."""
        if not isinstance(self.current, (Training, Exchanging, Serving)):
            self.set_state(state)
