"""The peers that a node probes, when it does, and what it learns."""

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
from p2ptrain.node.gossip import path_probes
from p2ptrain.node.gossip.path_probes import (
    AGAIN_S,
    PURPOSE,
    LastProbes,
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
    r.parts.peers.note_heartbeat(endpoint.peer, beat, r.parts.now())
    r.parts.detector.note_arrival(endpoint.peer, r.parts.now())


def endpoint_of(peer: PeerId) -> Endpoint:
    return Endpoint(peer, "127.0.0.1", 9, b"certificate")


async def test_undialled_peers_are_probed_first_then_unmeasured_paths(tmp_path: FilePath) -> None:
    async with rig(tmp_path) as r:
        parts, tried = r.parts, LastProbes()
        ann, bob, cai = ANN.peer, BOB.peer, CAI.peer
        r.decide(opening(parts.ledger.state, learners=(ann, bob)))

        def chosen() -> PeerId | None:
            found = whom_to_probe(parts, tried)
            return None if found is None else found.peer

        assert chosen() is None  # Nobody has said where to dial.
        hear(r, endpoint_of(cai))
        assert chosen() is None  # It is not a member.
        hear(r, endpoint_of(ann), dialled=True)
        assert chosen() == ann
        hear(r, endpoint_of(bob))
        assert chosen() == bob
        tried.at[bob] = parts.now() - AGAIN_S + 1
        assert chosen() == ann
        parts.paths.note_report(ann, [(parts.me, Path(5))], parts.ledger.state.since)
        assert chosen() is None
        tried.at[bob] = parts.now() - AGAIN_S
        assert chosen() == bob
        hear(r, endpoint_of(bob), serial=2, dialable=False)
        assert chosen() is None
        hear(r, endpoint_of(bob), serial=3)
        parts.detector.hint_lost(bob, parts.now())
        assert chosen() is None


async def test_nobody_probes_during_a_reduce(tmp_path: FilePath) -> None:
    async with rig(tmp_path, rules=ALONE) as r:
        parts, ann = r.parts, ANN.peer
        r.decide(opening(parts.ledger.state, learners=(ann,)))
        hear(r, endpoint_of(ann))
        assert whom_to_probe(parts, LastProbes()) is not None
        r.decide(opening(parts.ledger.state, Participant(parts.me, 16, 1), learners=(ann,)))
        assert is_busy(parts)
        assert whom_to_probe(parts, LastProbes()) is None


@contextmanager
def listening(r: Rig, handler: Handler) -> Iterator[Endpoint]:
    """Ann's data plane. `handler` serves its probes."""
    credentials = Credentials.create(ANN)
    with Listener(credentials, "127.0.0.1", 0, allowed=lambda peer: True) as listener:
        listener.trust_certificate(r.parts.credentials.certificate_der)
        listener.handle(PURPOSE, handler)
        yield Endpoint(ANN.peer, *listener.address, credentials.certificate_der)


async def test_probe_measures_rate_and_delay(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_probes, "PROBE_EVERY_S", 0.01)
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        parts, ann = r.parts, ANN.peer
        r.decide(opening(parts.ledger.state, learners=(ann,)))
        with listening(r, ProbeServer(lambda: False)) as endpoint:
            hear(r, endpoint)
            nursery.start_soon(probe_paths, parts)
            await settled(lambda: bool(r.said("probed")))
            assert parts.paths.is_measured(parts.me, ann)
            (said,) = r.said("probed")
            path = parts.paths.mine[ann]
            assert (said["kb_per_s"], said["delay_ms"]) == (path.rate, path.delay_ms)
            assert path.rate > 10
            nursery.cancel_scope.cancel()


async def test_probe_is_cancelled_when_a_reduce_begins(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_probes, "PROBE_EVERY_S", 0.01)
    # Otherwise it would wait for twice as long.
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
        parts, ann = r.parts, ANN.peer
        r.decide(opening(parts.ledger.state, learners=(ann,)))
        with listening(r, silent) as endpoint:
            hear(r, endpoint)
            nursery.start_soon(probe_paths, parts)
            await settled(begun.is_set)
            r.decide(opening(parts.ledger.state, Participant(parts.me, 16, 1), learners=(ann,)))
            parts.changes.notify_all()
            await settled(ended.is_set)
            assert not parts.paths.is_measured(parts.me, ann)
            nursery.cancel_scope.cancel()


async def test_peer_that_cannot_be_probed_costs_a_journal_line(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(path_probes, "PROBE_EVERY_S", 0.01)
    r = await new_rig(tmp_path)
    r.decide(opening(r.parts.ledger.state, learners=(ANN.peer,)))
    with listening(r, ProbeServer(lambda: False)) as endpoint:
        gone = endpoint
    hear(r, gone)
    nursery.start_soon(probe_paths, r.parts)
    await settled(lambda: bool(r.said("probe-failed")))
    assert r.parts.paths.mine == {}
