"""The view that every task has of its node. `assembly` makes one `Context` for all tasks.

A context is read-only. Its fields are facts that do not change while the node runs, and the state
objects. Every task may read a state object. Only one folder assigns to an object's fields: the
folder that the object's module names. `tests/architecture/test_state_owners.py` checks that. This
module does not know what any task does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.amendments import Amendments
from p2ptrain.archive.home import Home
from p2ptrain.archive.outer_step import OuterStep, OuterSteps
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.net import Network
from p2ptrain.node.state.alerts import Alerts
from p2ptrain.node.state.blobs import Blobs
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.identities import Identities
from p2ptrain.node.state.join_requests import JoinRequests
from p2ptrain.node.state.ledger_port import LedgerPort
from p2ptrain.node.state.node_state import NodeState
from p2ptrain.node.state.outer import Outer
from p2ptrain.node.state.own_heartbeat import OwnHeartbeat
from p2ptrain.node.state.peer_directory import PeerDirectory
from p2ptrain.node.state.plane import DataPlane
from p2ptrain.node.state.port_mappings import PortMappings
from p2ptrain.node.state.reduce import ReduceState
from p2ptrain.node.state.sharing import OptimizerSharing
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.node.state.timing import Timing
from p2ptrain.node.state.trainer import TrainerState
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import State
from p2ptrain.run import Leg, RunManifest
from p2ptrain.state import Layout
from p2ptrain.store import Store
from p2ptrain.sync.fragments import Fragment, fragments


@dataclass(frozen=True, slots=True)
class Context:
    around: Surroundings
    plane: DataPlane
    store: Store
    layout: Layout
    amendments: Amendments
    outer_steps: OuterSteps
    ledger: LedgerPort
    peers: PeerDirectory
    identities: Identities
    outer: Outer
    trainer: TrainerState
    reduce: ReduceState
    alerts: Alerts
    state: NodeState
    blobs: Blobs = field(default_factory=Blobs)
    sharing: OptimizerSharing = field(default_factory=OptimizerSharing)
    own_heartbeat: OwnHeartbeat = field(default_factory=OwnHeartbeat)
    join_requests: JoinRequests = field(default_factory=JoinRequests)
    changes: Changes = field(default_factory=Changes)
    port_mappings: PortMappings = field(default_factory=PortMappings)

    @property
    def config(self) -> NodeConfig:
        return self.around.config

    @property
    def home(self) -> Home:
        return self.around.home

    @property
    def journal(self) -> Journal:
        return self.around.journal

    @property
    def identity(self) -> Identity:
        return self.around.identity

    @property
    def me(self) -> PeerId:
        return self.around.identity.peer

    @property
    def run(self) -> RunId:
        return self.around.run.id

    @property
    def manifest(self) -> RunManifest:
        return self.around.run.manifest

    @property
    def admission(self) -> Admission:
        return self.around.admission

    @property
    def network(self) -> Network:
        return self.around.network

    @property
    def timing(self) -> Timing:
        return self.around.timing

    @property
    def draw(self) -> random.Random:
        """Draws random orders in which to ask peers. No peer can predict them."""
        return self.around.draw

    @property
    def trains(self) -> bool:
        return self.trainer.arena is not None

    @property
    def may_train(self) -> bool:
        """Whether this node may train now: it has a trainer, it is not paused, and the organiser
        has not ended the run."""
        return self.trains and self.state.pause is None and not self.state.stopped

    @property
    def has_finished(self) -> bool:
        """Whether this node has contributed since its owner asked it to finish."""
        asked = self.state.finishing
        return asked is not None and self.ledger.snapshot.tokens_by_peer.get(self.me, 0) > asked

    @property
    def limit_up_bytes_per_s(self) -> int | None:
        """The owner's limit: that of `p2ptrain limit`, or else that of `--limit-up`."""
        wanted = self.state.wishes.limits.up_bytes_per_s
        return self.config.limit_up_bytes_per_s if wanted is None else wanted

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """All fragments of θ."""
        return fragments(self.layout, self.manifest.sync.fragments)

    @property
    def shown(self) -> State:
        """The state that the status and our heartbeats show."""
        return self.state.shown(self.outer.fetching)

    def lacks_terms(self, step: int) -> bool:
        """Return whether this node lacks an agreed amendment (a signed change of the run's terms)
        that applies to outer step `step`."""
        return self.amendments.missing(self.ledger.snapshot.terms, step) is not None

    async def until_known(self, step: int) -> None:
        """Wait until this node has every agreed amendment that applies to outer step `step`."""
        while self.lacks_terms(step):
            await self.changes.wait()

    def outer_step(self, step: int) -> OuterStep:
        """Return the run's terms for outer step `step`. Call this only after `until_known`. Call it
        once per step and pass the result on, so that all of the step's code uses the same terms."""
        return self.outer_steps.at(self.ledger.snapshot.terms, step)

    def known_outer_step(self, step: int) -> OuterStep | None:
        """Return the terms of outer step `step`; None while an agreed amendment is missing."""
        return None if self.lacks_terms(step) else self.outer_step(step)

    def about(self, step: int) -> Leg:
        """Return the terms for outer step `step` as far as this node knows them. Amendments may
        still change them: use them only for estimates, for display, and for training for an outer
        step that the ledger has not reached."""
        return self.amendments.nearest(self.ledger.snapshot.terms, step)

    def data_block(self, block: int) -> Digest:
        """Return the digest of the data block that the ledger calls `block`."""
        data = self.blobs.data
        assert data is not None, "training starts after the data index has arrived"
        return data.train[self.ledger.rules.data_block(block)]

    def now(self) -> float:
        """Return the local monotonic time in seconds."""
        return self.around.clock()

    def at_head(self) -> bool:
        """Return whether θ contains every outer step that the ledger has decided."""
        return self.outer.step == self.ledger.snapshot.step

    def wants_to_join(self) -> bool:
        """Return whether this node is not a member, but is ready to train as one. A founder of an
        open run that does not train also asks: the members let it vote again (SPEC.md F4)."""
        chain, rule = self.ledger.snapshot, self.manifest
        votes = rule.founders_vote and self.me in rule.founders and not self.trains
        able = (votes or (self.trains and self.trainer.up)) and self.at_head()
        wanted = chain.phase is not Phase.ENDED and not self.state.leaving
        return able and wanted and not chain.is_member(self.me)
