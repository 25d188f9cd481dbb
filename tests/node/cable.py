"""Three nodes of one run, of which two cannot connect to each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError, PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.forwarding import forwarding
from tests.node.rig import ANN, OpenDoor, PaperNetwork, Rig, heartbeat, rig

NOBODY = 1
"""A port at which nobody listens."""


@dataclass
class Cable(PaperNetwork):
    """A network whose requests reach the handlers of other rigs. As in the real one, a handler's
    error arrives as PeerUnreachable. `sent` lists the protocols of all requests, in order."""

    me: PeerId = ANN.peer
    nodes: dict[PeerId, Rig] = field(default_factory=dict)
    sent: list[tuple[PeerId, str]] = field(default_factory=list)

    async def request(
        self, peer: PeerId, protocol: str, payload: bytes, *, deadline_s: float, bytes_max: int
    ) -> bytes:
        self.sent.append((peer, protocol))
        if peer not in self.peers:
            raise PeerUnreachable("no answer", peer=peer)
        network = self.nodes[peer].context.network
        assert isinstance(network, Cable)
        try:
            reply = await network.handlers[protocol](self.me, payload)
        except P2PTrainError as exc:
            raise PeerUnreachable(exc.what, peer=peer, code="PEER-FAILED") from exc
        if len(reply) > bytes_max:
            raise RemoteProtocolError("the reply is too long", peer=peer)
        return reply


def invite(visitor: Rig, *others: Rig) -> None:
    """Let the others admit `visitor` by name, and let it be a member for nobody."""
    for each in (visitor, *others):
        admission = each.context.admission
        assert isinstance(admission, OpenDoor)
        admission.also_named.add(visitor.context.me)
        each.set_chain(since={other.context.me: 0 for other in others})


def network_of(r: Rig) -> Cable:
    assert isinstance(r.context.network, Cable)
    return r.context.network


@asynccontextmanager
async def three_rigs(tmp_path: Path) -> AsyncIterator[tuple[Rig, Rig, Rig]]:
    """Yield a sender, a forwarder and a receiver of one run. The sender and the receiver are
    connected to the forwarder only, and their heartbeats say that they cannot be dialled."""
    async with some_rigs(tmp_path, forwarders=1) as (sender, forwarder, receiver):
        yield sender, forwarder, receiver


@asynccontextmanager
async def some_rigs(
    tmp_path: Path, *, forwarders: int, relays: int = 0
) -> AsyncIterator[tuple[Rig, ...]]:
    """Yield a sender, several forwarders and a receiver, as `three_rigs`. The heartbeats of the
    forwarders offer to relay that many edges."""
    between = [f"forwarder{number}" for number in range(forwarders)]
    async with AsyncExitStack() as stack:
        rigs = [
            await stack.enter_async_context(rig(tmp_path / name, welcoming=True))
            for name in ("sender", *between, "receiver")
        ]
        sender, middle = rigs[0], rigs[1:-1]
        names = [each.context.me for each in rigs]
        for each in rigs:
            each.surround(run=sender.run, network=Cable(me=each.context.me))
            each.set_chain(since=dict.fromkeys(names, 0))
            network_of(each).nodes.update(zip(names, rigs, strict=True))
            network_of(each).peers.update(names if each in middle else names[1:-1])
            forwarding.answer_forwarded(each.context)
        for each in rigs:
            for other in rigs:
                endpoint = other.context.plane.endpoint
                if other not in middle:
                    endpoint = replace(endpoint, port=NOBODY)
                beat = heartbeat(
                    sender.run.id,
                    incarnation=other.context.identities.incarnation,
                    endpoint=pack(endpoint.to_wire()),
                    dialable=other in middle,
                    relays=relays if other in middle else 0,
                )
                each.context.peers.table.note_heartbeat(other.context.me, beat, each.context.now())
                each.context.peers.detector.note_arrival(other.context.me, each.context.now())
                each.context.plane.listener.trust_certificate(endpoint.certificate_der)
        yield tuple(rigs)
