"""A small beat is a heartbeat that contains only the changes since an earlier, full beat: its base.

A receiver restores exactly the heartbeat that the sender meant, or notices that it cannot, even if
beats are lost, duplicated or late.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.peers.heartbeat import (
    COUNT_MAX,
    HEARTBEAT_BYTES_MAX,
    LACKS_MAX,
    Heartbeat,
    ReadyReport,
    ReduceReport,
    decode,
    encode,
)
from p2ptrain.peers.heartbeat_delta import (
    FULL_AT_FIRST,
    FULL_EVERY,
    FullHeartbeat,
    HeartbeatDelta,
    HeartbeatSender,
    decode_beat,
    full_heartbeat,
)
from p2ptrain.peers.peer_table import PeerTable
from tests.node.rig import ANN, BOB, heartbeat, somebody

RUN = RunId("a" * 64)
ENDPOINT = pack(
    Endpoint(ANN.peer, "203.0.113.7", 40001, Credentials.create(ANN).certificate_der).to_wire()
)
ADDRESSES = ("/ip4/203.0.113.7/tcp/4001", "/ip4/192.168.0.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001")
FIRST = FULL_AT_FIRST
AT_WORK = heartbeat(RUN, serial=FIRST, endpoint=ENDPOINT, addresses=ADDRESSES)


def said(*heartbeats: Heartbeat) -> list[bytes]:
    """Return what a node sends if these are its heartbeats since its start."""
    sender = HeartbeatSender()
    return [sender.encode_next(each) for each in heartbeats]


def small(payload: bytes) -> HeartbeatDelta:
    """Decode `payload`, which must be a small beat."""
    beat = decode_beat(payload)
    assert isinstance(beat, HeartbeatDelta)
    return beat


def hear(table: PeerTable, payload: bytes, now: float = 0.0) -> Heartbeat | None:
    """Receive a beat of Ann, as `gossip` does. Return the restored heartbeat; None if its base is
    missing."""
    beat = decode_beat(payload)
    if isinstance(beat, FullHeartbeat):
        table.note_heartbeat(ANN.peer, beat.heartbeat, now, beat)
        return beat.heartbeat
    understood = table.restore(ANN.peer, beat)
    if understood is None:
        table.note_alive(ANN.peer, beat, now)
    else:
        table.note_heartbeat(ANN.peer, understood, now)
    return understood


def newest(table: PeerTable) -> Heartbeat | None:
    """Return the newest heartbeat of Ann that the receiver could restore."""
    record = table.get(ANN.peer)
    return record.heartbeat if record else None


# ── sending ──────────────────────────────────────────────────────────────────────────────────────


def test_small_beat_contains_changed_fields_and_those_that_became_empty() -> None:
    ready = replace(AT_WORK, ready=ReadyReport(0, 32, 2))
    later = replace(AT_WORK, serial=FIRST + 1, inner_step=2)
    full, beat = said(ready, later)
    assert decode_beat(full) == FullHeartbeat(ready, full)
    assert small(beat) == HeartbeatDelta(1, FIRST + 1, FIRST, {"inner_step": 2, "ready": None})


def test_small_beat_is_restored_even_if_the_previous_one_is_lost() -> None:
    training = replace(AT_WORK, serial=FIRST + 1, inner_step=2)
    ready = replace(AT_WORK, serial=FIRST + 2, ready=ReadyReport(0, 32, 2))
    full, _lost, beat = said(AT_WORK, training, ready)
    base = decode_beat(full)
    assert isinstance(base, FullHeartbeat)
    assert full_heartbeat(base, small(beat)) == ready


@pytest.mark.parametrize(
    "changes",
    [
        {"addresses": ADDRESSES[:1]},
        {"endpoint": b""},
        {"trains": False},
        {"incarnation": 2},
        {"serial": FIRST + FULL_EVERY},
        {"serial": 0},
        {"reduce": ReduceReport(0, 0, None, tuple(somebody(n).peer for n in range(20)))},
    ],
    ids=lambda changes: "".join(changes),
)
def test_full_beat_is_sent_for_rare_or_large_changes_and_periodically(
    changes: dict[str, object],
) -> None:
    later = replace(AT_WORK, **{"serial": FIRST + 1} | changes)  # type: ignore[arg-type]
    assert said(AT_WORK, later)[1] == encode(later)


def test_node_sends_full_beats_after_its_start_and_when_a_peer_asks() -> None:
    sender = HeartbeatSender()
    beats = [replace(AT_WORK, serial=serial) for serial in range(FIRST + 3)]
    payloads = [sender.encode_next(each) for each in beats[:-1]]
    full = [isinstance(decode_beat(payload), FullHeartbeat) for payload in payloads]
    assert full == [True] * FIRST + [False, False]
    sender.full_next = True
    assert sender.encode_next(beats[-1]) == encode(beats[-1])
    assert not sender.full_next


def an_hour_of_work() -> list[Heartbeat]:
    """Return the heartbeats of a member in one hour: one every 2 s, and one at each change of its
    state. An outer step takes a minute, an inner step 2 s, and a reduce 6 s."""
    beats: list[Heartbeat] = []

    def beat(**changes: object) -> None:
        serial = FIRST + len(beats)
        usual = replace(beats[-1] if beats else AT_WORK, serial=serial)
        beats.append(replace(usual, **changes))  # type: ignore[arg-type]

    for step in range(60):
        head, update = Digest(f"{step:064x}"), Digest(f"{step:064d}")
        beat(step=step, height=2 * step, head=head, ready=None)
        for inner in range(1, 28):
            doing = f"training (inner {inner}/27)"
            beat(state=doing, inner_step=inner, inner_steps=27, tokens_per_s=12000 + 7 * inner)
        ready = ReadyReport(step, 27 * 65536, 27)
        beat(state="standing by for the others to finish their inner steps", ready=ready)
        beat(state="exchanging (part 1 of 5)", height=2 * step + 1, head=update)
        beat(state="exchanging (part 3 of 5)")
        beat(
            state="standing by for the members to commit the update",
            reduce=ReduceReport(step, 0, update, ()),
        )
    return beats


def test_small_beats_reduce_the_bytes_of_all_heartbeats_to_a_fifth() -> None:
    beats = an_hour_of_work()
    full_bytes = sum(len(encode(each)) for each in beats)
    assert 5 * sum(map(len, said(*beats))) < full_bytes


# ── receiving ────────────────────────────────────────────────────────────────────────────────────


def test_receiver_without_the_base_asks_the_sender_once_per_beat() -> None:
    table = PeerTable()
    full, beat, again = said(*(replace(AT_WORK, serial=FIRST + n) for n in range(3)))
    assert hear(table, beat) is None
    assert table.get(ANN.peer) is None
    assert (table.pop_lacking(), table.pop_lacking()) == ((ANN.peer,), ())
    assert hear(table, again) is None
    assert hear(table, full) == AT_WORK
    assert table.pop_lacking() == ()


def test_new_beat_without_its_base_shows_that_its_sender_is_alive() -> None:
    table = PeerTable()
    beats = [replace(AT_WORK, serial=FIRST + n) for n in range(2 * FULL_EVERY + 1)]
    payloads = said(*beats)
    hear(table, payloads[0], 1.0)
    for serial, now, heard_s in ((20, 2.0, 2.0), (19, 3.0, 2.0), (20, 4.0, 2.0), (21, 5.0, 5.0)):
        assert hear(table, payloads[serial], now) is None
        record = table.get(ANN.peer)
        assert record is not None
        assert (record.heard_s, record.heartbeat) == (heard_s, AT_WORK)
    hear(table, payloads[2 * FULL_EVERY], 6.0)
    assert newest(table) == beats[-1]
    hear(table, payloads[21], 7.0)
    record = table.get(ANN.peer)
    assert record is not None
    assert (record.heard_s, record.unread) == (6.0, None)


def test_small_beat_of_a_restarted_sender_is_not_applied_to_an_old_base() -> None:
    """A sender has a new incarnation after each start."""
    table = PeerTable()
    later = [replace(AT_WORK, incarnation=2, serial=FIRST + n, inner_step=n) for n in range(2)]
    _, small = said(*later)
    hear(table, encode(AT_WORK))
    assert hear(table, small, 1.0) is None
    record = table.get(ANN.peer)
    assert record is not None
    assert (record.heartbeat, record.heard_s, record.unread) == (AT_WORK, 1.0, (2, FIRST + 1))


def test_small_beat_from_before_a_restart_is_not_a_sign_of_life() -> None:
    table = PeerTable()
    other = replace(AT_WORK, incarnation=2)
    _, old = said(AT_WORK, replace(AT_WORK, serial=FIRST + 1, inner_step=2))
    hear(table, encode(other))
    assert hear(table, old, 1.0) is None
    record = table.get(ANN.peer)
    assert record is not None
    assert (record.heartbeat, record.heard_s, record.unread) == (other, 0.0, None)


def test_full_beat_that_arrives_late_does_not_replace_a_newer_base() -> None:
    table = PeerTable()
    beats = [replace(AT_WORK, serial=FIRST + n, inner_step=n) for n in range(FULL_EVERY + 2)]
    payloads = said(*beats)
    hear(table, payloads[FULL_EVERY])
    hear(table, payloads[0])
    assert hear(table, payloads[-1]) == newest(table) == beats[-1]


def test_heartbeat_asks_only_a_few_peers_for_their_full_beats() -> None:
    table, beat = PeerTable(peers_max=LACKS_MAX + 2), HeartbeatDelta(1, 9, 8, {})
    crowd = [somebody(number).peer for number in range(LACKS_MAX + 9)]
    for peer in crowd:
        assert table.restore(peer, beat) is None
        assert not table.note_alive(peer, beat, 1.0)
    assert table.pop_lacking() == tuple(crowd[:LACKS_MAX])
    table.forget(crowd[LACKS_MAX])
    assert table.pop_lacking() == (crowd[LACKS_MAX + 1],)


def spoiled(**changes: object) -> bytes:
    """Return a small beat of Ann with these changes, which make it invalid."""
    _, beat = said(AT_WORK, replace(AT_WORK, serial=FIRST + 1))
    wire = unpack(beat, bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    return pack(wire | changes)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"base": FIRST + 1}, "serial is out of range"),
        ({"base": -1}, "serial is out of range"),
        ({"base": None}, "field base has the wrong type NoneType"),
        ({"serial": True}, "field serial has the wrong type bool"),
        ({"serial": COUNT_MAX + 1}, "serial is out of range"),
        ({"incarnation": -1}, "incarnation is out of range"),
        ({"changed": []}, "field changed has the wrong type list"),
        ({"changed": {"serial": FIRST + 9}}, "repeats its incarnation or serial"),
        ({"changed": {"incarnation": 1}}, "repeats its incarnation or serial"),
        (
            {"changed": {"state": "x" * HEARTBEAT_BYTES_MAX}},
            f"the maximum is {HEARTBEAT_BYTES_MAX}",
        ),
        ({"state": "training"}, "fields missing or unknown: state"),
    ],
    ids=str,
)
def test_malformed_small_beat_is_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_beat(spoiled(**changes))
    assert rule in raised.value.what


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"surplus": 1}, "fields missing or unknown: surplus"),
        ({"height": -1}, "a heartbeat has a number that is out of range"),
        ({"head": None}, "field head has the wrong type NoneType"),
        ({"lacks": [ANN.peer] * (LACKS_MAX + 1)}, f"in a list of at most {LACKS_MAX}"),
        ({"lacks": ["nobody"]}, "a heartbeat names an invalid peer id"),
        ({"endpoint": b"x" * (HEARTBEAT_BYTES_MAX - 200)}, f"the maximum is {HEARTBEAT_BYTES_MAX}"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_restored_heartbeat_must_pass_the_checks_of_a_full_beat(
    changed: dict[str, object], rule: str
) -> None:
    table = PeerTable()
    hear(table, encode(AT_WORK))
    with pytest.raises(RemoteProtocolError) as raised:
        hear(table, spoiled(changed=changed))
    assert rule in raised.value.what
    assert newest(table) == AT_WORK


@given(st.binary(max_size=300))
def test_beat_of_random_bytes_is_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_beat(noise)


# ── losses, repetitions and delays ───────────────────────────────────────────────────────────────

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(["training", "exchanging", ""]),
        "joining": st.booleans(),
        "height": st.integers(0, 3),
        "addresses": st.sampled_from([(), ADDRESSES]),
        "ready": st.sampled_from([None, ReadyReport(0, 32, 2)]),
        "reduce": st.sampled_from([None, ReduceReport(0, 1, None, (BOB.peer,))]),
        "lacks": st.sampled_from([(), (BOB.peer,)]),
        "restart": st.just(value=True),
    },
)


def described(history: list[dict[str, object]]) -> list[Heartbeat]:
    """Return the heartbeats of a node. `history` lists the fields that change from each heartbeat
    to the next. `restart` stands for a restart of the node, after which it has a new incarnation
    and counts its beats from 0."""
    beats = [AT_WORK]
    for changes in history:
        fields = {name: value for name, value in changes.items() if name != "restart"}
        last = beats[-1]
        counts = {"serial": last.serial + 1}
        if "restart" in changes:
            counts = {"serial": 0, "incarnation": last.incarnation + 1}
        beats.append(replace(last, **counts, **fields))  # type: ignore[arg-type]
    return beats


@given(
    st.lists(CHANGES, min_size=1, max_size=40),
    st.data(),
)
def test_next_full_beat_repairs_any_loss_repetition_or_delay(
    history: list[dict[str, object]], data: st.DataObject
) -> None:
    beats = described(history)
    payloads = said(*beats)
    arriving = data.draw(st.lists(st.integers(0, len(beats) - 1), max_size=80))
    table, of_full_beats = PeerTable(), PeerTable()
    for index in arriving:
        understood = hear(table, payloads[index])
        assert understood in (None, beats[index])
        hear(of_full_beats, encode(beats[index]))
        assert newest(table) in (None, *(beats[each] for each in arriving))
    last = replace(beats[-1], serial=beats[-1].serial + 1, inner_step=2)
    for each in (table, of_full_beats):
        hear(each, encode(last))
    assert newest(table) == newest(of_full_beats) == last


@given(st.lists(CHANGES, min_size=1, max_size=40))
def test_every_beat_is_restored_exactly_if_none_is_lost(
    history: list[dict[str, object]],
) -> None:
    beats = described(history)
    table = PeerTable()
    for beat, payload in zip(beats, said(*beats), strict=True):
        assert hear(table, payload) == newest(table) == beat
        assert decode(encode(beat)) == beat


def test_longest_list_of_peers_to_ask_survives_encoding() -> None:
    lacks = tuple(PeerId(somebody(number).peer) for number in range(LACKS_MAX))
    assert decode(encode(replace(AT_WORK, lacks=lacks))).lacks == lacks
