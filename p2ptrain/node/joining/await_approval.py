"""Wait until the organiser has admitted this node.

The node sends its signed request to the peers that it is connected to, and asks them for the newest
allowlist every 15 s. It need not wait that long: a peer that has a newer list, or a denial for this
node, says so at once (`decisions`).

Only organisers and their delegates decide. A list, a grant and a denial count because of their
signatures, whoever sends them. A denial ends this node only after a round of questions in which no
connected peer showed a document that admits it. So a peer that delivers an outdated denial does not
gain more than silent peers do. A peer that says "ask again" is asked itself, and no other peer is.
So it can only waste its own time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import NotAuthorised, PeerError, RemoteProtocolError, RunMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.gossip.ask_peers import (
    ADMITTED,
    HELLO_PACE,
    MEMBER,
    STRANGER,
    first_good,
    in_order,
)
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.node.gossip.own_addresses import own_addresses
from p2ptrain.node.joining.find_run import PrintLine, looks_nearby, near_addresses, reconnect
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.joining.stated_machine import stated_device, stated_reach
from p2ptrain.node.state.timing import USUAL
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import AwaitingApproval
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.peers.protocol_names import DECISION_PROTOCOL
from p2ptrain.run import Denial, JoinRequest, Run, SignedDenial, Ticket
from p2ptrain.run.denial import DENIAL_BYTES_MAX
from p2ptrain.run.stated_facts import in_words

TELLERS_MAX = 16
"""Maximum number of peers remembered that said "ask again"."""

Look = Callable[[PeerId], Awaitable[bool | None]]
"""Asks one peer for the newest list; True if this node is on it."""

PAUSE_S = 1.0
"""Minimum seconds between two questions that such peers cause."""

DENIAL_S = 3.0
"""Seconds for which a node that must not wait for approval still waits for a denial, which tells
its user more than that the node is not on the list."""


@dataclass(slots=True)
class DecisionNews:
    """News from peers that arrived since this waiting node last asked them."""

    admission: Admission
    me: PeerId
    denial: Denial | None = None
    """The newest denial of this node that has not ended."""
    tellers: dict[PeerId, None] = field(default_factory=dict)
    _event: trio.Event = field(default_factory=trio.Event)

    async def take(self, peer: PeerId, payload: bytes) -> bytes:
        """Note a message of the decision protocol from `peer`, which may be anybody.

        Raises RunMismatch, RemoteProtocolError: the organiser of this run did not sign it."""
        if payload:
            fresh = SignedDenial.from_bytes(payload, self.admission.run).denial
            newer = self.denial is None or self.denial.created_unix < fresh.created_unix
            if fresh.peer == self.me and newer and fresh.holds(time.time()):
                self.denial = fresh
                self._event.set()
        elif len(self.tellers) < TELLERS_MAX:
            self.tellers[peer] = None
            self._event.set()
        return b""

    async def wait(self, at_most_s: float) -> None:
        """Return when there is news, or after `at_most_s` seconds."""
        with trio.move_on_after(at_most_s):
            await self._event.wait()
        self._event = trio.Event()

    def pop_tellers(self) -> list[PeerId]:
        tellers, self.tellers = list(self.tellers), {}
        return tellers


async def be_admitted(
    network: Network,
    config: NodeConfig,
    identity: Identity,
    run: Run,
    admission: Admission,
    ways_in: list[str],
    reception: StartupStatus,
    print_line: PrintLine,
    *,
    draw: random.Random,
    look_s: float = USUAL.approval_look_s,
) -> None:
    """Ask connected peers for the allowlist until this node is on it: every `look_s`, or when one
    of them has news.

    Any connected peer may send the list, since this node may not know yet which peers are members.

    Raises NotAuthorised: AUTH-DENIED, the organiser has denied the request; AUTH-PENDING, this node
        is not admitted, and the user does not want it to wait."""
    if admission.admits(identity.peer):
        return
    news = DecisionNews(admission, identity.peer)
    network.handle(DECISION_PROTOCOL, news.take, bytes_max=DENIAL_BYTES_MAX, anyone=True)
    ask = partial(_request, identity, run, config, network)
    look = partial(_refresh, network, ask, run, admission, reception.journal, identity.peer)
    refusal, asked = _pending(run, identity.peer), False
    while True:
        order = in_order(network.connected(), partial(_rank, admission, config), draw)
        known = news.denial  # A denial that arrives during this round gets a round of its own.
        if await first_good(order, look, HELLO_PACE):
            return
        if known is not None:
            raise _denied(run, known)
        if not config.wait_for_approval:
            await news.wait(DENIAL_S)
            raise refusal if news.denial is None else _denied(run, news.denial)
        if not asked:
            reception.set_state(AwaitingApproval(), refusal.do)
            print_line(f"{AwaitingApproval.name}: {refusal.what}")
            print_line(_shown(config, network, run, identity.peer))
            print_line(refusal.do)
            print_line("the node then continues by itself")
            asked = True
        if await _told(news, look, trio.current_time() + look_s):
            return
        near = near_addresses(network) if looks_nearby(network, config) else []
        if away := _to_dial_again(network, admission, list(dict.fromkeys([*ways_in, *near]))):
            await reconnect(network, config, away, print_line)


async def _told(news: DecisionNews, look: Look, until: float) -> bool:
    """Wait for news until the time `until`, and ask the peers that have news. Return whether this
    node is admitted. Return early if there is a denial."""
    while news.denial is None and (left_s := until - trio.current_time()) > 0:
        await news.wait(left_s)
        if tellers := news.pop_tellers():
            if await first_good(tellers, look, HELLO_PACE):
                return True
            await trio.sleep(min(PAUSE_S, max(0.0, until - trio.current_time())))
    return False


def _rank(admission: Admission, config: NodeConfig, peer: PeerId) -> int:
    """Return the rank of `peer` in the order of asking: admitted peers first, then peers at
    addresses that the user gave."""
    if admission.admits(peer):
        return MEMBER
    named = any(peer in address for address in config.bootstrap)
    return ADMITTED if named else STRANGER


def _to_dial_again(network: Network, admission: Admission, ways_in: list[str]) -> list[str]:
    """Return the addresses to dial again. There are none while an admitted peer is connected.

    A connected stranger does not count: otherwise it could keep this node from finding the run.
    Addresses of connected strangers are left out, because those would answer first again."""
    connected = network.connected()
    if any(map(admission.admits, connected)):
        return []
    return [way for way in ways_in if not any(peer in way for peer in connected)]


def _request(identity: Identity, run: Run, config: NodeConfig, network: Network) -> bytes:
    """Return this node's signed request to join, with the token of its user's invitation, and with
    its own word about its machine.

    Raises RemoteProtocolError: the invitation was for another run or organiser."""
    token, proof = b"", b""
    if config.ticket:
        ticket = Ticket.from_bytes(config.ticket, run.id, run.manifest.organiser)
        token, proof = ticket.signed.signed.to_bytes(), ticket.proof_for(identity.peer)
    now = int(time.time())
    request = JoinRequest(
        run.id,
        identity.peer,
        now,
        config.note,
        token,
        proof,
        device=stated_device(config),
        reach=stated_reach(config, network.addresses(), own_addresses()),
    )
    return request.to_bytes(identity)


async def _refresh(
    network: Network,
    request: Callable[[], bytes],
    run: Run,
    admission: Admission,
    journal: Journal,
    me: PeerId,
    peer: PeerId,
) -> bool | None:
    """Send `peer` our request to join, and adopt the allowlist in its reply if it is newer, and the
    grants of delegates. Return True if this node is admitted, otherwise None.

    The addresses that `peer` sends are used only if the organiser has admitted `peer`."""
    try:
        reply = await send_hello(network, peer, HelloRequest(run.id, request()))
        if reply.hand_overs:
            admission.adopt_hand_overs(reply.hand_overs)
        if reply.allowlist:
            admission.adopt_if_newer(reply.allowlist)
        if reply.grants:
            admission.adopt_granted(reply.grants, reply.amendments)
    except (PeerError, RemoteProtocolError, RunMismatch) as exc:
        # Other peers may give a valid answer, and this one is asked again later.
        journal.write("bad-hello", peer=peer, code=exc.code, reason=exc.what)
        return None
    if admission.admits(peer):
        for other, addresses in reply.peers.items():
            network.record_reported(other, addresses)
    return True if admission.admits(me) else None


def _shown(config: NodeConfig, network: Network, run: Run, me: PeerId) -> str:
    """Say what `p2ptrain peers pending` shows the organiser about this node."""
    reach = stated_reach(config, network.addresses(), own_addresses())
    note = f', "{config.note}"' if config.note else ""
    machine = in_words(stated_device(config), reach)
    organiser = label(run.manifest.organiser)
    told = f"{label(me)}, {machine}{note}"
    return f"your signed request goes to the organiser, {organiser}, who sees: {told}"


def _pending(run: Run, me: PeerId) -> NotAuthorised:
    organiser = run.manifest.organiser
    return NotAuthorised(
        f"this node is not on the allowlist of run {run.manifest.name!r}",
        code="AUTH-PENDING",
        evidence=[
            f"you are   {me}",
            f"organiser {organiser} {label(organiser)}",
            "each node that this node asks gets its signed request to join, and forwards the "
            "request when it is connected to the organiser's node",
        ],
        likely="the organiser has not approved this node yet",
        do=f"ask the organiser to run: p2ptrain peers approve {me}",
    )


def _denied(run: Run, denial: Denial) -> NotAuthorised:
    organiser = run.manifest.organiser
    return NotAuthorised(
        f"the organiser has denied this node's request to join run {run.manifest.name!r}, until "
        f"{denial.end}",
        code="AUTH-DENIED",
        evidence=[
            f"you are   {denial.peer}",
            f"organiser {organiser} {label(organiser)}",
            f"reason    {denial.reason or 'the organiser did not give a reason'}",
        ],
        likely="the organiser does not want this node in the run for now",
        do=f"ask the organiser; you can also start the node again after {denial.end}",
    )
