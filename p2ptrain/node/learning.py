"""Learn which run this node serves, and wait to be admitted to it.

From our own disk if we were here before; else from whoever answers at a bootstrap address. What is
learnt is checked before it is kept: the digest is the run's id, the signature is the organiser's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    NotAuthorised,
    PeerError,
    RemoteProtocolError,
    RunMismatch,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.admission import Admission
from p2ptrain.node.hello import HelloReply, HelloRequest, decode_reply, encode_request
from p2ptrain.node.home import Home
from p2ptrain.node.topics import HELLO_BYTES_MAX, HELLO_PROTOCOL
from p2ptrain.run import JoinRequest, Run, load_run, save_run

HELLO_S = 20.0
CONNECT_S = 10.0
ASK_AGAIN_S = 15.0
"""Between two looks whether the organiser has approved us."""

Say = Callable[[str], None]


def known_run(home: Home, config: NodeConfig) -> Run | None:
    """The run that our disk holds, if any.

    Raises:
        RunMismatch: it is not the one that was asked for.
    """
    run = load_run(home.manifest)
    if run is not None:
        _check_expected(run, config)
    return run


async def learn_run(network: Network, config: NodeConfig, home: Home, addresses: list[str]) -> Run:
    """The run that a peer at one of `addresses` serves, checked and kept.

    Raises:
        NetworkUnreachable, ConfigError: nobody can be reached, or the addresses are wrong.
        RunMismatch: they serve another run than the one asked for.
        RemoteProtocolError: the manifest is forged, truncated or impossible.
    """
    if not addresses:
        raise ConfigError(
            "this node knows no run and nobody to ask",
            do="p2ptrain node --bootstrap ADDR, with an address from the run's organiser",
        )
    peer = await network.connect_any(addresses, deadline_s=CONNECT_S)
    reply = await ask(network, peer, HelloRequest(config.run or "", b""))
    run = Run.from_bytes(reply.manifest)
    _check_expected(run, config)
    save_run(home.manifest, run)
    return run


async def reconnect(network: Network, addresses: list[str], say: Say) -> None:
    """Be connected to somebody of a run that we know; where nobody answers, go on and try later."""
    try:
        await network.connect_any(addresses, deadline_s=CONNECT_S)
    except NetworkUnreachable as exc:
        say(f"{exc.what}; going on with what is on this disk, and trying again")


async def ask(network: Network, peer: PeerId, request: HelloRequest) -> HelloReply:
    """One hello. Raises PeerError, RemoteProtocolError."""
    answer = await network.request(
        peer,
        HELLO_PROTOCOL,
        encode_request(request),
        deadline_s=HELLO_S,
        bytes_max=HELLO_BYTES_MAX,
    )
    return decode_reply(answer)


async def be_admitted(
    network: Network,
    config: NodeConfig,
    identity: Identity,
    run: Run,
    admission: Admission,
    say: Say,
) -> None:
    """Return once we may take part; until then ask, wait, and look again.

    Raises:
        NotAuthorised: we may not, and were told not to wait.
    """
    asked = False
    while not admission.admits(identity.peer):
        for peer in network.connected():
            await _refresh(network, peer, identity, run, admission)
        if admission.admits(identity.peer):
            break
        refusal = _pending(run, identity.peer)
        if not config.wait_for_approval:
            raise refusal
        if not asked:
            say(f"{refusal.what}. {refusal.do}")
            asked = True
        await trio.sleep(ASK_AGAIN_S)


async def _refresh(
    network: Network, peer: PeerId, identity: Identity, run: Run, admission: Admission
) -> None:
    """Show a peer our request to join, and take the newest list that it has."""
    request = JoinRequest(run.id, identity.peer, int(time.time()))
    try:
        reply = await ask(network, peer, HelloRequest(run.id, request.to_bytes(identity)))
        for other, addresses in reply.peers.items():
            network.remember(other, addresses)
        if reply.allowlist:
            admission.consider(reply.allowlist)
    except (PeerError, RemoteProtocolError, RunMismatch):
        return  # Another peer may do better; who is connected is asked again later.


def _check_expected(run: Run, config: NodeConfig) -> None:
    if config.run is not None and run.id != config.run:
        raise RunMismatch(
            "this is another run than the one you asked for",
            evidence=[
                f"asked for {config.run}",
                f"found     {run.id} ({run.manifest.name!r} by {label(run.manifest.organiser)})",
            ],
            likely="the address belongs to another run, or this home was used for another one",
            do="ask the organiser for the right address, or use another --home",
        )


def _pending(run: Run, me: PeerId) -> NotAuthorised:
    organiser = run.manifest.organiser
    return NotAuthorised(
        f"this node is not on the allowlist of run {run.manifest.name!r}",
        code="AUTH-PENDING",
        evidence=[
            f"you are   {me}",
            f"organiser {organiser} {label(organiser)}",
            "a signed request to join has been sent to the nodes of the run",
        ],
        likely="the organiser has not approved this node yet",
        do=f"ask the organiser to run: p2ptrain allow add {me}",
    )
