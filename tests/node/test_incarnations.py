"""Each start of a node has a higher number than all starts before it: its incarnation. This number
decides which heartbeats of a peer count, which are outdated, and which are a sign of a duplicate.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive import start_count
from p2ptrain.ledger.chain.values import Skip
from p2ptrain.node.gossip.outdated_heartbeats import is_older_than_chain, is_outdated, is_wanted
from p2ptrain.peers.heartbeat import encode
from p2ptrain.peers.heartbeat_delta import FullHeartbeat, HeartbeatDelta
from p2ptrain.peers.incarnations import (
    DRAW_BITS,
    INCARNATION_MAX,
    STARTS_MAX,
    Incarnations,
    IncarnationSpan,
    Mark,
    draw_of,
    incarnation_of,
    starts_of,
)
from p2ptrain.peers.replayed_heartbeats import APART_S, FORWARDERS_MAX, TIMES, ReplayedHeartbeats
from tests.node.rig import ANN, BOB, CAI, heartbeat, rig, signed, somebody

OLD, NEW = incarnation_of(3, 900), incarnation_of(4, 7)
AGAIN_S = 2.5


def test_incarnation_consists_of_the_count_of_starts_and_a_random_number() -> None:
    assert NEW > OLD
    assert (starts_of(OLD), draw_of(OLD)) == (3, 900)
    assert incarnation_of(STARTS_MAX, (1 << DRAW_BITS) - 1) == INCARNATION_MAX == (1 << 64) - 1


def test_heartbeats_of_an_earlier_start_never_count_again() -> None:
    found = Incarnations()
    assert [found.note_decoded(ANN.peer, OLD, serial, 0.0) for serial in (1, 2, 2, 5, 4)] == [
        *(True, True, False, True, False)
    ]
    assert found.note_decoded(ANN.peer, NEW, 0, 10.0)
    assert [found.note_decoded(ANN.peer, OLD, serial, 11.0) for serial in (5, 6, 1000)] == [
        False
    ] * 3
    assert found.is_stale(ANN.peer, OLD)
    assert not found.is_stale(ANN.peer, NEW)
    assert found.is_known(ANN.peer, NEW)
    assert not found.is_stale(BOB.peer, OLD)


def test_repeated_or_older_heartbeat_is_not_a_sign_of_life() -> None:
    found = Incarnations()
    assert found.note_arrival(ANN.peer, NEW, 1, 0.0, AGAIN_S)
    assert not found.note_arrival(ANN.peer, NEW, 1, 1.0, AGAIN_S)
    assert not found.note_arrival(ANN.peer, OLD, 50, 2.0, AGAIN_S)
    assert found.heard_span(ANN.peer) == IncarnationSpan(0.0, 0.0)


def test_second_incarnation_counts_until_its_next_heartbeat_is_overdue() -> None:
    """While two incarnations of a peer are heard, another process may be using its key."""
    found = Incarnations()
    found.note_arrival(ANN.peer, OLD, 1, 0.0, AGAIN_S)
    assert not found.is_other_due(ANN.peer, OLD, 1.0)
    assert found.is_other_due(ANN.peer, NEW, 1.0)
    assert not found.is_other_due(ANN.peer, NEW, AGAIN_S)
    found.note_arrival(ANN.peer, NEW, 1, 3.0, AGAIN_S)
    assert found.is_other_due(ANN.peer, OLD, 4.0)
    assert not found.is_other_due(ANN.peer, NEW, 4.0)
    found.note_arrival(ANN.peer, OLD, 2, 5.0, AGAIN_S)  # The older process sends a new heartbeat.
    assert found.is_other_due(ANN.peer, NEW, 6.0)
    found.note_arrival(ANN.peer, OLD, 2, 9.0, AGAIN_S)  # A peer forwards that heartbeat again.
    assert not found.is_other_due(ANN.peer, NEW, 9.0)


def test_mark_is_kept_only_for_the_incarnation_that_is_heard() -> None:
    """A mark is a peer's signature over its incarnation."""
    found = Incarnations()
    found.note_decoded(ANN.peer, NEW, 0, 0.0)
    for incarnation in (OLD, NEW, NEW + 1):
        found.keep_mark(ANN.peer, Mark(incarnation, b"signature"))
    assert found.mark(ANN.peer) == Mark(NEW, b"signature")
    assert found.mark(BOB.peer) is None


def test_many_strangers_do_not_displace_what_is_known_of_a_member() -> None:
    found = Incarnations({ANN.peer}.__contains__, peers_max=3)
    assert found.note_decoded(ANN.peer, NEW, 5, 0.0)
    for number in range(10):
        assert found.note_decoded(somebody(number).peer, OLD, 1, 0.0)
    assert len(found) == 3
    assert not found.note_decoded(ANN.peer, OLD, 9, 1.0)


# the count of starts in the home (the node's folder)


def test_starts_are_counted_from_one_in_a_new_home(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    assert start_count.read_start_count(path) == 0
    assert [start_count.count_start(path) for _ in range(3)] == [1, 2, 3]
    assert start_count.count_start(path, at_least=70) == 71
    assert path.read_text() == "71\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "-3", "many", "9" * 30, "\x00\xff", "١٢"])
def test_count_of_starts_begins_again_at_one_if_its_file_is_damaged(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "starts"
    path.write_text(text, encoding="utf-8")
    assert start_count.count_start(path) == 1


# The journal names a peer that forwards outdated heartbeats, unless it may have a good reason.


def test_peer_that_keeps_forwarding_outdated_heartbeats_is_named() -> None:
    replays, spoke = ReplayedHeartbeats(), IncarnationSpan(0.0, 200.0)
    times = [100.0 + APART_S * each for each in range(TIMES)]
    named = [replays.note_replay(CAI.peer, ANN.peer, spoke, 0.0, now) for now in times]
    assert named == [False] * (TIMES - 1) + [True]


@pytest.mark.parametrize(
    ("forwarder", "spoke", "since_s", "apart_s"),
    [
        (
            CAI.peer,
            IncarnationSpan(0.0, 200.0),
            0.0,
            APART_S / 10,
        ),  # All arrive at once: the forwarder may not have received a newer heartbeat yet.
        (
            CAI.peer,
            IncarnationSpan(95.0, 105.0),
            0.0,
            APART_S,
        ),  # The author has only just restarted.
        (
            CAI.peer,
            IncarnationSpan(0.0, 60.0),
            50.0,
            APART_S,
        ),  # The forwarder was first heard shortly before the author was last heard.
        (
            CAI.peer,
            IncarnationSpan(0.0, 200.0),
            None,
            APART_S,
        ),  # CAI, the forwarder, was never heard.
        (CAI.peer, None, 0.0, APART_S),
        (
            ANN.peer,
            IncarnationSpan(0.0, 200.0),
            0.0,
            APART_S,
        ),  # Ann sends her own old heartbeats: her home was restored or copied.
    ],
)
def test_peer_that_may_not_have_heard_of_the_restart_is_not_named(
    forwarder: str, spoke: IncarnationSpan | None, since_s: float | None, apart_s: float
) -> None:
    replays = ReplayedHeartbeats()
    times = [100.0 + apart_s * each for each in range(TIMES)]
    assert not any(replays.note_replay(forwarder, ANN.peer, spoke, since_s, now) for now in times)  # type: ignore[arg-type]


def test_memory_for_forwarders_is_bounded() -> None:
    replays = ReplayedHeartbeats()
    for number in range(FORWARDERS_MAX + 5):
        replays.note_replay(f"peer {number}", ANN.peer, IncarnationSpan(0.0, 99.0), 0.0, 99.0)  # type: ignore[arg-type]
    assert len(replays) == FORWARDERS_MAX


# heartbeats that are older than the chain


async def test_heartbeat_is_outdated_if_its_author_signed_an_entry_two_heights_above(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        state = r.context.ledger.snapshot
        later = replace(state, height=2)
        entries = [
            signed(r.run.id, state, Skip(0), ANN, CAI),
            signed(r.run.id, later, Skip(2), ANN),  # At height 3.
        ]
        old, just = (heartbeat(r.run.id, height=height) for height in (1, 2))
        assert is_older_than_chain(later, entries, ANN.peer, old)
        assert not is_older_than_chain(later, entries, ANN.peer, just)
        assert not is_older_than_chain(later, entries, CAI.peer, old)
        elsewhere = heartbeat(r.run.id, height=0, line="1" * 64)
        assert not is_older_than_chain(later, entries, ANN.peer, elsewhere)


# in a node


async def test_outdated_heartbeat_is_dropped_and_its_forwarder_named(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        context, incarnations = r.context, r.context.identities.incarnations
        context.identities.since_s = -1000.0
        old = heartbeat(r.run.id, incarnation=OLD, serial=5)
        wire = encode(old)
        assert is_wanted(context, CAI.peer, ANN.peer, wire)
        for peer, incarnation in ((ANN.peer, NEW), (CAI.peer, OLD)):
            incarnations.note_arrival(peer, incarnation, 1, -100.0, AGAIN_S)
            incarnations.note_arrival(peer, incarnation, 2, context.now(), AGAIN_S)
        small = HeartbeatDelta(OLD, 6, 5, {})
        assert is_outdated(context, ANN.peer, FullHeartbeat(old, wire))
        assert is_outdated(context, ANN.peer, small)
        for number in range(TIMES - 1):
            now = context.now() + (number - TIMES) * APART_S
            span = IncarnationSpan(-1000.0, now)
            context.identities.replays.note_replay(CAI.peer, ANN.peer, span, -1000.0, now)
        assert not is_wanted(context, CAI.peer, ANN.peer, wire)
        (said,) = r.said("outdated-heartbeats")
        assert (said["peer"], said["author"]) == (CAI.peer, ANN.peer)
        assert "this peer forwarded an outdated heartbeat" in str(said["what"])


async def test_heartbeat_with_our_key_and_a_higher_incarnation_makes_us_ask(
    tmp_path: Path,
) -> None:
    """It may come from a duplicate. Our own old heartbeats are only dropped."""
    async with rig(tmp_path) as r:
        context, watch = r.context, r.context.identities.watch
        watch.use_incarnation(NEW)
        watch.ask({ANN.peer}, (), context.now())
        due_s = watch.next_ask_s()
        for incarnation, wanted in ((OLD, False), (NEW, True)):
            wire = encode(heartbeat(r.run.id, incarnation=incarnation))
            assert is_wanted(context, CAI.peer, context.me, wire) is wanted
            assert watch.next_ask_s() == due_s
        newer = encode(heartbeat(r.run.id, incarnation=NEW + 1))
        assert is_wanted(context, CAI.peer, context.me, newer)
        assert watch.next_ask_s() < due_s
        assert watch.duplicate is None
        assert is_wanted(context, CAI.peer, ANN.peer, b"no heartbeat")
