"""Strangers get a run's weights only if its manifest makes them public, and never anything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.dataplane import Credentials, Endpoint, SecureSocket, dial
from p2ptrain.dataplane.gate import GUEST_CONNECTIONS_EACH
from p2ptrain.encoding import unpack
from p2ptrain.errors import PeerError, RemoteProtocolError, TryLater
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest
from p2ptrain.ledger.chain.values import Commit, Participant, SnapshotRef
from p2ptrain.node.watching.visits import SITE_BURST, serve_visitors
from p2ptrain.peers.protocol_names import VISIT_PROTOCOL
from p2ptrain.run.outside_facts import Public
from p2ptrain.state import snapshot_meta
from p2ptrain.store import CHUNK_BYTES_MAX
from p2ptrain.swarm import PURPOSE
from p2ptrain.swarm.wire import receive_response, send_request
from p2ptrain.testing.ledgers import digest
from p2ptrain.testing.published import policy
from tests.node.rig import Rig, opening, rig, settled, somebody

STRANGER, OTHER = somebody(7), somebody(8)
WEIGHTS = Public(telemetry=True, weights=True)


@asynccontextmanager
async def serving(folder: Path, public: Public = WEIGHTS) -> AsyncIterator[Rig]:
    settings: dict[str, Any] = {"rules": policy(participants_min=1), "public": public}
    async with rig(folder, steps=40, **settings) as r, trio.open_nursery() as nursery:
        nursery.start_soon(serve_visitors, r.context)
        await trio.testing.wait_all_tasks_blocked(0.05)
        yield r
        nursery.cancel_scope.cancel()


async def visit(r: Rig, who: Identity, shown: Credentials | None = None) -> tuple[Credentials, Any]:
    """Introduce `who` to the node, and return its credentials and the node's endpoint."""
    credentials = shown or Credentials.create(who)
    reply = await r.network.handlers[VISIT_PROTOCOL](who.peer, credentials.certificate_der)
    return credentials, Endpoint.from_wire(unpack(reply, bytes_max=4096))


async def connected(
    credentials: Credentials, endpoint: Endpoint, purpose: str = PURPOSE
) -> SecureSocket:
    return await trio.to_thread.run_sync(
        lambda: dial(credentials, endpoint, {"purpose": purpose}, deadline_s=20.0)
    )


async def fetched(connection: SecureSocket, chunk: Digest) -> bytes | None:
    def ask() -> bytes | None:
        send_request(connection, chunk)
        found = receive_response(connection, bytearray(CHUNK_BYTES_MAX), 20.0)
        return None if found is None else bytes(found)

    return await trio.to_thread.run_sync(ask)


async def test_stranger_fetches_tokenizer_and_snapshot_but_no_data(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        store, manifest = r.context.store, r.context.manifest
        await settled(lambda: store.holds_blob(manifest.genesis))
        with closing(await connected(*await visit(r, STRANGER))) as connection:
            for blob in (manifest.tokenizer, manifest.genesis):
                listed = store.manifest(blob)
                for chunk in (blob, *listed.chunks):
                    assert await fetched(connection, chunk) == store.get_chunk(chunk)
            index = store.manifest(manifest.data.index)
            for chunk in (manifest.data.index, *index.chunks):
                assert store.has_chunk(chunk)
                assert await fetched(connection, chunk) is None


async def test_newly_certified_snapshot_becomes_public(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        store, context = r.context.store, r.context
        meta = snapshot_meta(r.run.id, 1, context.layout.digest)
        snapshot = store.put_blob("snapshot", [b"new" * 99], dict(meta))
        (chunk,) = store.manifest(snapshot).chunks
        with closing(await connected(*await visit(r, STRANGER))) as connection:
            assert await fetched(connection, chunk) is None
            r.decide(opening(context.ledger.snapshot, Participant(context.me, 16, 1)))
            ref = SnapshotRef(0, snapshot)
            r.decide(Commit(0, 0, digest("u"), ref, digest("any")))
            context.changes.notify_all()
            await trio.testing.wait_all_tasks_blocked(0.2)
            assert await fetched(connection, chunk) == b"new" * 99
            assert await fetched(connection, context.manifest.genesis) is not None


async def test_run_with_secret_weights_lets_no_stranger_in(tmp_path: Path) -> None:
    async with serving(tmp_path, Public(telemetry=True)) as r:
        assert VISIT_PROTOCOL not in r.network.handlers
        with pytest.raises(PeerError):
            await connected(Credentials.create(STRANGER), r.context.plane.endpoint)


async def test_guest_cannot_use_any_other_purpose(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        credentials, endpoint = await visit(r, STRANGER)
        for purpose in ("ring", "probe", "upload-probe", "observe", "proof", "relay", "nonsense"):
            with pytest.raises(PeerError, match="you are not admitted to this run"):
                await connected(credentials, endpoint, purpose)


async def test_visitor_cannot_speak_for_another_peer(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        theirs = Credentials.create(OTHER)
        with pytest.raises(RemoteProtocolError, match="its own certificate"):
            await visit(r, STRANGER, theirs)
        with pytest.raises(PeerError):
            await connected(theirs, r.context.plane.endpoint)
        with pytest.raises(RemoteProtocolError):
            await r.network.handlers[VISIT_PROTOCOL](STRANGER.peer, b"no certificate")


async def test_visits_and_connections_of_strangers_are_few(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        credentials, endpoint = await visit(r, STRANGER)
        held = [await connected(credentials, endpoint) for _ in range(GUEST_CONNECTIONS_EACH)]
        with pytest.raises(PeerError):
            await connected(credentials, endpoint)
        for each in held:
            each.close()
        for _ in range(SITE_BURST - 1):
            await visit(r, STRANGER, credentials)
        with pytest.raises(TryLater):
            await visit(r, STRANGER, credentials)


async def test_visits_change_nothing_that_the_node_believes(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        before = r.diary.records[:]
        with closing(await connected(*await visit(r, STRANGER))) as connection:
            assert await fetched(connection, r.context.manifest.tokenizer) is not None
            assert r.context.plane.listener.arrivals() == {}, "it is no evidence of reachability"
        assert (r.heard(), r.diary.records, r.network.addresses_by_peer) == ([], before, {})
        assert len(r.context.peers.table) == 0


async def test_members_connect_while_all_guest_places_are_taken(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        member, listener = Credentials.create(r.context.identity), r.context.plane.listener
        listener.trust_certificate(member.certificate_der)
        held = list[SecureSocket]()
        for number in range(4):
            guest = await visit(r, somebody(30 + number))
            held += [await connected(*guest) for _ in range(GUEST_CONNECTIONS_EACH)]
        late = Credentials.create(STRANGER)
        listener.invite(late.certificate_der)
        with pytest.raises(PeerError):
            await connected(late, r.context.plane.endpoint)
        held.append(await connected(member, r.context.plane.endpoint))
        for each in held:
            each.close()
