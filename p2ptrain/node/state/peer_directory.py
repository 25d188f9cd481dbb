"""A node's knowledge of its peers: which it hears, which are up, and whose claims it believes.

A peer is *vouched for* if the run or its organiser has accepted it (`is_vouched_for`). A *visitor*
is admitted by name, but is not a member (yet). This module does not know why other modules ask.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.address_group import is_this_machine
from p2ptrain.archive.admission import Admission
from p2ptrain.dataplane import Endpoint
from p2ptrain.ids import PeerId
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.failure_detector import Colour, Detector
from p2ptrain.net import Network
from p2ptrain.node.state.forwarding import Forwarding
from p2ptrain.node.state.punching import Punching
from p2ptrain.node.state.relaying import Relaying
from p2ptrain.peers.misbehaviour_log import MisbehaviourLog
from p2ptrain.peers.path_table import PathTable
from p2ptrain.peers.peer_table import PeerRecord, PeerTable


@dataclass(frozen=True, slots=True)
class PeerDirectory:
    admission: Admission
    ledger: Ledger
    network: Network
    table: PeerTable
    """The newest heartbeat of each peer."""
    detector: Detector
    """Judges which peers are up."""
    paths: PathTable
    """Delays and rates between peers."""
    complaints: MisbehaviourLog
    """Journals what peers did wrong, with a rate limit."""
    forwarding: Forwarding = field(default_factory=Forwarding)
    """Requests that members pass on to each other."""
    relaying: Relaying = field(default_factory=Relaying)
    """This node as a relay between members."""
    punching: Punching = field(default_factory=Punching)
    """Connections that two members behind NATs open from both ends."""

    def is_down(self, peer: PeerId) -> bool:
        return self.detector.status(peer, trio.current_time()) is Colour.RED

    def is_vouched_for(self, peer: PeerId) -> bool:
        """Return whether `peer` is a member, or the organisers or delegates admit it as a trainer.

        In an open run every peer is admitted, so admission proves nothing."""
        is_member = self.ledger.state.is_member(peer)
        return is_member or (not self.admission.is_open and self.admission.may_train(peer))

    def is_visitor(self, peer: PeerId) -> bool:
        """Return whether `peer` is not a member, but the organisers or a delegate admit it by name,
        as a trainer or as a reader. May be called from any thread.

        In an open run, a peer that nobody has named is admitted too, but it is not a visitor."""
        return self.admission.names(peer) and not self.ledger.state.is_member(peer)

    def may_fetch_in_every_way(self, fetcher: PeerId, source: PeerId) -> bool:
        """Return whether `fetcher` may also connect by hole punching and through relays in order to
        fetch chunks from `source`. `source` must be a member; `fetcher` may be a visitor."""
        state = self.ledger.state
        return state.is_member(source) and (state.is_member(fetcher) or self.is_visitor(fetcher))

    def was_last_relayed(self, peer: PeerId) -> bool:
        """Return whether the last connection with `peer` that was not dialled went through a relay,
        and not through punched holes."""
        relayed_s = self.relaying.reached_s.get(peer)
        return relayed_s is not None and not self.punching.has_worked_since(peer, relayed_s)

    def ledger_is_current(self) -> bool:
        """Return whether we have a heartbeat of a counted peer on our chain or branch (`line`), and
        no such peer has a longer chain than we have."""
        beats, line = [view.heartbeat for view in self.counted()], self.ledger.state.line
        heights = [beat.height for beat in beats if beat.line == line]
        return bool(heights) and max(heights) <= self.ledger.state.height

    def counted(self) -> list[PeerRecord]:
        """Return the peers with whose ledger heights this node compares its own height.

        These are the believed peers that are vouched for, or all believed peers if none is vouched
        for. If all always counted, each new identity in an open run could claim to be ahead, and
        keep this node waiting for 30 s more."""
        believed = self.believed()
        return [view for view in believed if self.is_vouched_for(view.peer)] or believed

    def believed(self) -> list[PeerRecord]:
        """Return all peers except those that claim to be ahead of us and do not prove it."""
        now = trio.current_time()
        return [view for view in self.table if self.ledger.believes(view.peer, now)]

    def may_be_at(self, endpoint: Endpoint) -> bool:
        """Return whether to dial `endpoint`. Only the peer itself says that it is there.

        A loopback address leads to our own machine. It is dialled only if our connection with that
        peer is on this machine too. Otherwise a member could make us connect to services that
        listen here for local programs only."""
        site = self.network.site_of(endpoint.peer)
        return not is_this_machine(endpoint.host) or (bool(site) and is_this_machine(site))

    def report_misbehaviour(self, event: str, about: str, **fields: object) -> None:
        """Journal what a peer did wrong, with a rate limit."""
        self.complaints.complain(event, about, fields, trio.current_time())
