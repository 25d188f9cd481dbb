"""Find members that help with checks: those at the user's addresses, and a few that these name.

Whose word is it? A member's address comes from the peer that the user named, but only peers in
documents that the organiser signed count as members, and each proves its identity when we connect.
So the worst lie is an address that does not answer. Their help changes only lines on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from p2ptrain.address_group import is_elsewhere
from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.doctor.finding import Finding, warning
from p2ptrain.doctor.visit import Witness
from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError, PeerUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.node.gossip.own_addresses import own_addresses
from p2ptrain.peers.peer_table import endpoint_of
from p2ptrain.peers.protocol_names import ENDPOINT_BYTES_MAX, ENDPOINT_PROTOCOL
from p2ptrain.run import Run, SignedAllowlist
from p2ptrain.suggested_command import to_paste

NAME = "help of members"

WITNESSES_MAX = 3
"""Maximum number of members that are asked. Two at different addresses show the kind of a NAT, and
the third one replaces a member that lies or does not answer."""
DIALLED_MAX = 6
"""Maximum number of members that are dialled at addresses that the first peer reports."""
DIAL_S = 4.0
INTRODUCE_S = 5.0

NOWHERE = ("127.0.0.1", 9)
"""The address that we name as ours. The member only keeps our certificate, and dials nobody."""


def not_asked(home: Path, *, is_admitted: bool, is_own: bool, is_running: bool) -> Finding | None:
    """Return why members cannot be asked for help; None if they can."""
    said = (
        "not asked whether they can connect to you, what your NAT is like, and how fast the way is"
    )
    if not is_admitted:
        return warning(
            NAME,
            f"{said}: members help only peers that the run admits",
            fix="once the organiser has admitted you, run this command again",
        )
    if is_running:
        return warning(
            NAME,
            f"{said}: a node is running here, and a second one with its key would disturb it",
            fix=f"{to_paste(home, 'status')} shows how others reach that node and how long its "
            "exchanges take; or stop it first",
        )
    if not is_own:
        return warning(
            NAME,
            f"{said}: this home has no key yet, and members help only peers that they recognise",
            fix=f"create the key with {to_paste(home, 'id')}, and run this command again",
        )
    return None


def vouched_for(run: Run, allowed: SignedAllowlist | None) -> frozenset[PeerId]:
    """Return the peers that the organiser's signed documents name."""
    listed = set(allowed.allowlist.peers) if allowed is not None else set[PeerId]()
    return frozenset(listed | {run.manifest.organiser, *run.manifest.founders})


async def find_witnesses(
    network: Network,
    credentials: Credentials,
    answered: Sequence[PeerId],
    told: Mapping[PeerId, tuple[str, ...]],
    members: frozenset[PeerId],
    *,
    is_open: bool,
) -> tuple[Witness, ...]:
    """Return members that know our certificate now, at most WITNESSES_MAX. `answered` are connected
    peers, and `told` are the addresses of others. In an open run, the organiser vouches only for
    the founders, so peers that the user named count too (`is_open`)."""
    known = [peer for peer in answered if is_open or peer in members]
    others = [peer for peer in told if peer in members - {network.peer, *answered}]
    if len(known) < WITNESSES_MAX:
        known += await _connected(network, {peer: told[peer] for peer in others[:DIALLED_MAX]})
    found = dict[PeerId, Endpoint]()

    async def introduce(peer: PeerId) -> None:
        try:
            found[peer] = await introduced(network, credentials, peer)
        except P2PTrainError:
            return  # Another member may help.

    async with trio.open_nursery() as nursery:
        for peer in known[: WITNESSES_MAX + 1]:
            nursery.start_soon(introduce, peer)
    own = own_addresses()
    return tuple(
        Witness(peer, site, found[peer], is_elsewhere(site, own.hosts, own.networks))
        for peer in known
        if peer in found and (site := network.site_of(peer))
    )[:WITNESSES_MAX]


async def _connected(network: Network, told: Mapping[PeerId, tuple[str, ...]]) -> list[PeerId]:
    """Connect to these peers, and return those that answer. Names are not resolved, because another
    peer chose them."""

    async def connect(peer: PeerId) -> None:
        network.record_reported(peer, told[peer])
        try:
            await network.connect_peer(peer, deadline_s=DIAL_S)
        except P2PTrainError:
            return
        answered.append(peer)

    answered = list[PeerId]()
    async with trio.open_nursery() as nursery:
        for peer in told:
            nursery.start_soon(connect, peer)
    return answered


async def introduced(network: Network, credentials: Credentials, peer: PeerId) -> Endpoint:
    """Send the peer our certificate, as a heartbeat does, and return its endpoint.

    Raises PeerError, RemoteProtocolError: it does not answer, or its answer is malformed."""
    ours = Endpoint(network.peer, *NOWHERE, credentials.certificate_der)
    reply = await network.request(
        peer,
        ENDPOINT_PROTOCOL,
        pack(ours.to_wire()),
        deadline_s=INTRODUCE_S,
        bytes_max=ENDPOINT_BYTES_MAX,
    )
    endpoint = endpoint_of(peer, reply)
    if endpoint is None:
        raise PeerUnreachable("it has no data plane", peer=peer)
    return endpoint
