"""Peers join a run that has begun, leave it, are admitted to it, and are removed from it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from p2ptrain.ids import Digest
from p2ptrain.node.state.timing import Timing
from p2ptrain.run import Denial, SignedDenial, Ticket, save_denials
from tests.node.swarm import SwarmNode, swarm

ENDLESS = 10_000


async def ask(node: SwarmNode, command: str) -> dict[str, object]:
    """Send a command to a node over its control socket, as the `p2ptrain` program does."""
    async with await trio.open_unix_socket(str(node.home.control)) as stream:
        await stream.send_all(json.dumps({"command": command}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += await stream.receive_some()
    reply = json.loads(answer)
    assert isinstance(reply, dict)
    return reply


async def test_joiner_during_a_run_gets_snapshot_and_updates_and_contributes(
    tmp_path: Path,
) -> None:
    async with swarm(tmp_path, later=("dan",), steps=ENDLESS) as s:
        await s.until(lambda: s.seed.context.ledger.snapshot.snapshot)
        await s.start("dan")
        await s.until(lambda: s.credits("dan"))
        dan = s["dan"]
        (fetched,) = dan.events("snapshot-fetched")
        (caught_up,) = dan.events("caught-up")
        assert fetched["step"] in range(2, dan.step, 2)
        assert isinstance(caught_up["updates"], int)
        assert s.credits("dan")[0] >= int(str(caught_up["step"]))
        s.check_chain()
        s.check_equal()


async def test_node_can_join_if_all_others_keep_only_the_newest_snapshot(
    tmp_path: Path,
) -> None:
    """The others (except the seed) have deleted older snapshots, and the updates before them."""
    async with swarm(tmp_path, later=("dan",), keep_snapshots=1, steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        first = s["ann"].context.ledger.kept.updates[0].update
        forgetful = [node for node in s.up if node is not s.seed]  # A seed keeps all updates.
        await s.until(lambda: not any(node.context.store.has_chunk(first) for node in forgetful))
        await s.start("dan")
        await s.until(lambda: s.credits("dan"))
        assert [event["step"] for event in s["dan"].events("snapshot-fetched")][-1]
        s.check_equal()


async def test_node_can_join_even_if_some_sources_have_corrupt_chunks(tmp_path: Path) -> None:
    async with swarm(tmp_path, later=("dan",), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(3))
        for name in ("ann", "bob"):
            corrupt_all(s[name])
        await s.start("dan")
        await s.until(lambda: s.credits("dan"))
        s.check_equal()
        s.check_chain()


def corrupt_all(node: SwarmNode) -> None:
    """Change one byte in every chunk of every snapshot and update that this node holds."""
    store = node.context.store
    for record in node.records:
        digest = record.get("digest" if record["event"] == "snapshot" else "update")
        if isinstance(digest, str):
            for chunk in store.manifest(Digest(digest)).chunks:
                path = store.chunk_path(chunk)
                data = bytearray(path.read_bytes())
                data[0] ^= 1
                path.unlink()
                path.write_bytes(data)


async def test_run_continues_after_the_seed_has_left(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=ENDLESS) as s:
        names = ("ann", "bob", "cai")
        await s.until(lambda: len(s["ann"].context.ledger.snapshot.voters) == 4)
        await s.seed.leave()
        assert s.seed.events("left", member=False)
        # The seed stops as soon as it has received a roster without itself. This roster may not
        # have reached all other nodes yet.
        await s.until(lambda: not any(is_member(s[name], s.seed) for name in names))
        await s.go_on(2, *names)
        # `check_chain` needs all updates. A node that joined after the first outer step began with
        # a snapshot, and lacks the updates before it.
        first = [name for name in names if s[name].events("committed", step=0, took_part=True)]
        s.check_chain(first[0])
        s.check_equal()


def is_member(node: SwarmNode, other: SwarmNode) -> bool:
    """Return whether `other` is a member according to `node`."""
    return node.context.ledger.snapshot.is_member(other.peer)


async def test_peer_removed_from_the_allowlist_leaves_the_roster_and_stops(
    tmp_path: Path,
) -> None:
    timing = Timing(revocation_look_s=0.3)
    async with swarm(tmp_path, steps=ENDLESS, timing=timing) as s:
        cai = s["cai"]
        await s.until(lambda: cai.peer in s.seed.context.ledger.snapshot.voters)
        s.allow(remove=[cai.peer])
        assert await ask(s.seed, "reload-allowlist") == {"newer": True, "sequence": 2}
        assert await ask(s.seed, "reload-allowlist") == {"newer": False, "sequence": 2}
        others = (s.seed, s["ann"], s["bob"])
        await s.until(lambda: not any(is_member(node, cai) for node in others))
        await s.until(lambda: cai.error is not None)
        assert cai.error is not None
        assert cai.error.code == "AUTH-REVOKED"
        await s.go_on(1)
        s.check_chain()


def states(node: SwarmNode) -> list[object]:
    """Return all states that this node has reported since its start."""
    return [event["state"] for event in node.events("state")]


async def test_waiting_peer_takes_part_once_the_organiser_approves(tmp_path: Path) -> None:
    """The waiting peer is connected only to Ann; its request reaches the organiser's node (the
    seed) all the same."""
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        eve = s.add("eve")
        eve.timing = replace(eve.timing, approval_look_s=0.5)
        s.nursery.start_soon(partial(s.start, "eve", bootstrap="ann"))
        await s.until(lambda: eve.peer in s.seed.context.join_requests.pending)
        assert eve.peer not in s.seed.context.network.connected()
        await s.until(lambda: states(eve)[-1] == "awaiting approval")
        assert await ask(s.seed, "pending") == {"pending": [eve.peer]}
        assert not eve.up
        told = await ask(eve, "status")
        assert (told["state"], told["run"]) == ("awaiting approval", s.seed.context.run)
        assert told["waits_for"] == f"ask the organiser to run: p2ptrain peers approve {eve.peer}"
        assert (await ask(eve, "pending"))["code"] == "NOT-YET"
        newcomer = ["checking", "connecting", "checking", "connecting", "awaiting approval"]
        assert states(eve) == newcomer
        s.allow(eve.peer)
        await ask(s.seed, "reload-allowlist")
        assert await ask(s.seed, "pending") == {"pending": []}
        await s.until(lambda: s.credits("eve"))
        s.check_chain()


async def test_waiting_peer_learns_within_seconds_that_it_is_admitted(tmp_path: Path) -> None:
    """The waiting peer asks only once in ten minutes, and is connected only to Ann."""
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        eve = s.add("eve")
        eve.timing = replace(eve.timing, approval_look_s=600.0)
        s.nursery.start_soon(partial(s.start, "eve", bootstrap="ann"))
        await s.until(lambda: eve.peer in s.seed.context.join_requests.pending)
        s.allow(eve.peer)
        await ask(s.seed, "reload-allowlist")
        await s.until(lambda: eve.up)
        await s.until(lambda: eve.peer not in s["ann"].context.join_requests.pending)


async def test_waiting_peer_learns_within_seconds_that_it_is_denied(tmp_path: Path) -> None:
    """The denial reaches the waiting peer through Ann, which forwarded its request."""
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        eve = s.add("eve")
        eve.config = replace(eve.config, note="Eve, at night")
        eve.timing = replace(eve.timing, approval_look_s=600.0)
        s.nursery.start_soon(partial(s.start, "eve", bootstrap="ann"))
        await s.until(lambda: eve.peer in s.seed.context.join_requests.pending)
        assert eve.peer not in s.seed.context.network.connected()
        answer: Any = await ask(s.seed, "join-requests")
        (asks,) = answer["requests"]
        assert (asks["peer"], asks["note"]) == (eve.peer, "Eve, at night")
        assert asks["via"] == s["ann"].peer
        now = int(time.time())
        denial = Denial(s.seed.context.run, eve.peer, now, now + 86_400, "we are enough")
        save_denials(s.seed.home.denials, [SignedDenial.publish(s.seed.identity, denial)])
        assert await ask(s.seed, "reload-denials") == {"denials": 1}
        assert await ask(s.seed, "pending") == {"pending": []}
        await s.until(lambda: eve.error is not None)
        assert eve.error is not None
        assert (eve.error.code, eve.error.exit_code) == ("AUTH-DENIED", 6)
        assert denial.end in eve.error.what
        assert "reason    we are enough" in eve.error.evidence
        # A second start ends in the same way. Now Ann knows the denial.
        await s.start("eve", bootstrap="ann")
        await s.until(lambda: eve.error is not None)
        await s.go_on(1)


async def test_token_admits_a_volunteer_without_the_organisers_user(tmp_path: Path) -> None:
    """The request with the token reaches the organiser's node (the seed) through Ann."""
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=ENDLESS) as s:
        await s.until(lambda: s.at_step(1))
        eve, run = s.add("eve"), s.seed.context.run
        end = int(time.time()) + 600
        ticket = Ticket.issue(s.seed.identity, run, b"t" * 32, uses=1, expires_unix=end)
        eve.config = replace(eve.config, ticket=ticket.to_bytes(), run=run)
        eve.timing = replace(eve.timing, approval_look_s=600.0)
        s.nursery.start_soon(partial(s.start, "eve", bootstrap="ann"))
        await s.until(lambda: s.credits("eve"))
        (admitted,) = s.seed.events("admitted-by-token")
        assert (admitted["peer"], admitted["token"]) == (eve.peer, ticket.signed.token.key)
        s.check_chain()
