"""A node measures (probes) its paths to other peers: which peers it probes, when, and what it
learns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path as FilePath

import pytest
import trio

from p2ptrain.dataplane import Credentials, Endpoint, Listener, ProbeServer, SecureSocket
from p2ptrain.dataplane import probing as data_plane_probing
from p2ptrain.encoding import pack
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.node.gossip.path_probes import (
    AGAIN_S,
    PURPOSE,
    is_busy,
    probe_paths,
    whom_to_probe,
)
from p2ptrain.peers.path_table import Path
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, opening, rig, settled

ALONE = policy(participants_min=1)

Handler = Callable[[SecureSocket, Mapping[str, object]], None]


def hear(r: Rig, endpoint: Endpoint, serial: int = 1, **changes: object) -> None:
    wire = pack(endpoint.to_wire())
    beat = heartbeat(r.run.id, endpoint=wire, serial=serial, **changes)
    r.context.peers.table.note_heartbeat(endpoint.peer, beat, r.context.now())
    r.context.peers.detector.note_arrival(endpoint.peer, r.context.now())


def endpoint_of(peer: PeerId) -> Endpoint:
    return Endpoint(peer, "127.0.0.1", 9, b"certificate")


async def test_peers_never_dialled_are_probed_before_unmeasured_paths(
    tmp_path: FilePath,
) -> None:
    async with rig(tmp_path) as r:
        context, tried = r.context, dict[PeerId, float]()
        ann, bob, cai = ANN.peer, BOB.peer, CAI.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann, bob)))

        def chosen() -> PeerId | None:
            found = whom_to_probe(context, tried)
            return None if found is None else found.peer

        assert chosen() is None  # No peer has announced where to dial yet.
        hear(r, endpoint_of(cai))
        assert chosen() is None  # This peer is not a member.
        hear(r, endpoint_of(ann), dialled=True)
        assert chosen() == ann
        hear(r, endpoint_of(bob))
        assert chosen() == bob
        tried[bob] = context.now() - AGAIN_S + 1
        assert chosen() == ann
        context.peers.paths.note_report(ann, [(context.me, Path(5))], context.ledger.snapshot.since)
        assert chosen() is None
        tried[bob] = context.now() - AGAIN_S
        assert chosen() == bob
        hear(r, endpoint_of(bob), serial=2, dialable=False)
        assert chosen() is None
        hear(r, endpoint_of(bob), serial=3)
        context.peers.detector.hint_lost(bob, context.now())
        assert chosen() is None


async def test_node_does_not_probe_during_a_reduce(tmp_path: FilePath) -> None:
    async with rig(tmp_path, rules=ALONE) as r:
        context, ann = r.context, ANN.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann,)))
        hear(r, endpoint_of(ann))
        assert whom_to_probe(context, {}) is not None
        r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1), learners=(ann,)))
        assert is_busy(context)
        assert whom_to_probe(context, {}) is None


@contextmanager
def listening(r: Rig, handler: Handler) -> Iterator[Endpoint]:
    """Open Ann's data plane, where `handler` answers probes, and yield its endpoint."""
    credentials = Credentials.create(ANN)
    with Listener(credentials, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        listener.trust_certificate(r.context.plane.credentials.certificate_der)
        listener.handle(PURPOSE, handler)
        yield Endpoint(ANN.peer, *listener.address, credentials.certificate_der)


async def test_probe_measures_rate_and_delay(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        context, ann = r.context, ANN.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann,)))
        with listening(r, ProbeServer(lambda: False)) as endpoint:
            hear(r, endpoint)
            nursery.start_soon(probe_paths, context)
            await settled(lambda: bool(r.said("probed")))
            assert context.peers.paths.is_measured(context.me, ann)
            (said,) = r.said("probed")
            path = context.peers.paths.mine[ann]
            assert (said["kb_per_s"], said["delay_ms"]) == (path.rate, path.delay_ms)
            assert path.rate > 10
            nursery.cancel_scope.cancel()


async def test_probe_is_cancelled_when_a_reduce_begins(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the cancellation, the probe would wait for 2 × PROBE_S.
    monkeypatch.setattr(data_plane_probing, "PROBE_S", 100.0)
    begun, ended = threading.Event(), threading.Event()

    def silent(sock: SecureSocket, hello: Mapping[str, object]) -> None:
        sock.set_deadline(200.0)
        sock.receive_frame()
        begun.set()
        try:
            sock.receive_frame()
        finally:
            ended.set()

    async with rig(tmp_path, rules=ALONE) as r, trio.open_nursery() as nursery:
        context, ann = r.context, ANN.peer
        r.decide(opening(context.ledger.snapshot, learners=(ann,)))
        with listening(r, silent) as endpoint:
            hear(r, endpoint)
            nursery.start_soon(probe_paths, context)
            await settled(begun.is_set)
            r.decide(
                opening(context.ledger.snapshot, Participant(context.me, 16, 1), learners=(ann,))
            )
            context.changes.notify_all()
            await settled(ended.is_set)
            assert not context.peers.paths.is_measured(context.me, ann)
            nursery.cancel_scope.cancel()


async def test_failed_probe_is_journaled_and_leaves_the_path_unmeasured(
    tmp_path: FilePath, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path)
    r.decide(opening(r.context.ledger.snapshot, learners=(ANN.peer,)))
    with listening(r, ProbeServer(lambda: False)) as endpoint:
        gone = endpoint
    hear(r, gone)
    nursery.start_soon(probe_paths, r.context)
    await settled(lambda: bool(r.said("probe-failed")))
    assert r.context.peers.paths.mine == {}
