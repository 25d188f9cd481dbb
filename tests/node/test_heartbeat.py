"""A heartbeat contains all reports of a node. A heartbeat with invalid fields is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.peers.heartbeat import (
    HEARTBEAT_BYTES_MAX,
    Heartbeat,
    ReadyReport,
    ReduceReport,
    SnapshotReport,
    ValidationReport,
    decode,
    encode,
)
from p2ptrain.peers.path_table import Path

PEER = Identity.from_seed(b"\x03" * 32).peer

FULL = Heartbeat(
    run=RunId("a" * 64),
    incarnation=7,
    serial=3,
    state="exchanging (part 2 of 4)",
    trains=True,
    joining=False,
    leaving=False,
    height=12,
    line=Digest("d" * 64),
    head=Digest("b" * 64),
    step=5,
    inner_step=8,
    inner_steps=8,
    tokens_per_s=4000,
    endpoint=b"endpoint",
    addresses=("/ip4/127.0.0.1/tcp/4001",),
    ready=ReadyReport(5, 8192, 8),
    reduce=ReduceReport(5, 0, Digest("c" * 64), ()),
    dialled=True,
    dialable=False,
    paths=((PEER, Path(125_000, 40)),),
    validation=ValidationReport(5, 0, 3, 1536, 7680.5),
    snapshot=SnapshotReport(4, Digest("e" * 64)),
)
CLAIMED = ReadyReport(5, 8192, 8, ClaimStatement(5, 7, 8192, 8, Digest("f" * 64), bytes(64)))
ABORTED = replace(FULL, ready=None, reduce=ReduceReport(5, 1, None, (PEER,)))


@pytest.mark.parametrize(
    "heartbeat",
    [
        FULL,
        ABORTED,
        replace(FULL, reduce=None, validation=None, snapshot=None),
        replace(FULL, ready=CLAIMED),
    ],
)
def test_heartbeat_survives_encoding(heartbeat: Heartbeat) -> None:
    assert decode(encode(heartbeat)) == heartbeat


def test_offer_to_relay_is_a_text_that_older_versions_skip() -> None:
    """Their decoder refuses an unknown field, and takes the text for a malformed address."""
    offering = replace(FULL, relays=2)
    wire = unpack(encode(offering), bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    assert "relays" not in wire
    assert wire["addresses"] == [*FULL.addresses, "/p2ptrain-relays/2"]
    assert decode(encode(offering)) == offering
    full = replace(offering, addresses=tuple(f"/ip4/192.0.2.{host}/tcp/1" for host in range(8)))
    assert decode(encode(full)) == replace(full, addresses=full.addresses[:7])


def test_older_versions_skip_the_text_about_ipv6() -> None:
    telling = replace(FULL, relays=2, dialable_by_ipv6=True)
    wire = unpack(encode(telling), bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    texts = ["/p2ptrain-relays/2", "/p2ptrain-dialable/6"]
    assert wire["addresses"] == [*FULL.addresses, *texts]
    assert "dialable_by_ipv6" not in wire
    assert decode(encode(telling)) == telling


@pytest.mark.parametrize("said", ["", "-1", "x", "²", "1234"])
def test_malformed_offer_to_relay_offers_nothing(said: str) -> None:
    wire = unpack(encode(FULL), bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    assert decode(pack(wire | {"addresses": [f"/p2ptrain-relays/{said}"]})) == replace(
        FULL, addresses=()
    )


def spoiled(**changes: object) -> bytes:
    """Return the bytes of a heartbeat with these changes, which make it invalid."""
    wire = unpack(encode(FULL), bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    return pack(wire | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "a" * 63},
        {"head": "B" * 64},
        {"line": "d" * 63},
        {"line": 4},
        {"height": -1},
        {"height": True},
        {"serial": 1 << 60},
        {"step": "5"},
        {"snapshot": [4, "e" * 63]},
        {"snapshot": [-1, "e" * 64]},
        {"snapshot": ["e" * 64]},
        {"trains": 1},
        {"endpoint": "text"},
        {"addresses": ["x"] * 9},
        {"addresses": ["x" * 201]},
        {"addresses": [7]},
        {"addresses": ["/ip4/1.2.3.4\x1b[2J"]},
        {"dialled": 1},
        {"dialable": None},
        {"paths": [[PEER, 1]]},
        {"paths": [[PEER, -1, 1]]},
        {"paths": [[PEER, 1, "2"]]},
        {"paths": [["nobody", 1, 1]]},
        {"paths": [[PEER, 1, 1], [PEER, 2, 2]]},
        {"paths": [[PEER, 1, 1]] * 9},
        {"paths": {}},
        {"ready": [1, 2]},
        {"ready": [1, 2, -3]},
        {"ready": [1, 2, None]},
        {"ready": [1, 2, 3, 4, "e" * 64]},
        {"ready": [1, 2, 3, 0, "e" * 64, bytes(64)]},
        {"ready": [1, 2, 0, 4, "e" * 64, bytes(64)]},
        {"ready": [1, 2, 3, 4, "e" * 63, bytes(64)]},
        {"ready": [1, 2, 3, 4, None, None]},
        {"ready": [1, 2, 3, 4, "e" * 64, bytes(63)]},
        {"reduce": [1, 0, "short", []]},
        {"reduce": [1, 0, None, ["nobody"]]},
        {"reduce": [1, 0, None, [PEER] * 65]},
        {"reduce": [1, 0, None, PEER]},
        {"reduce": {}},
        {"validation": [5, 0, 3, 1536]},
        {"validation": [5, 0, 3, 1536, 7680]},
        {"validation": [5, 0, 3, 1536, True]},
        {"validation": [5, 0, 3, 1536, -0.5]},
        {"validation": [5, 0, 3, 1536, 1536_000.5]},
        {"validation": [5, 3, 3, 1536, 7680.5]},
        {"validation": [5, 3, 0, 1536, 7680.5]},
        {"validation": [5, 0, 4097, 1536, 7680.5]},
        {"validation": [5, 0, 3, 0, 0.0]},
        {"validation": [-1, 0, 3, 1536, 7680.5]},
        {"validation": [5, 0.0, 3, 1536, 7680.5]},
        {"validation": {}},
        {"surplus": 1},
    ],
    ids=str,
)
def test_heartbeat_with_an_invalid_field_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(spoiled(**changes))


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_loss_that_is_not_finite_is_neither_sent_nor_accepted(loss: float) -> None:
    with pytest.raises(RemoteProtocolError):
        ValidationReport(5, 0, 3, 1536, loss)
    # The bytes are made by hand, since a report with this value cannot be created.
    wire = encode(FULL).replace(struct.pack(">d", 7680.5), struct.pack(">d", loss))
    with pytest.raises(RemoteProtocolError, match="not a valid value"):
        decode(wire)


@given(st.binary(max_size=300))
def test_heartbeat_of_random_bytes_is_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(noise)


def test_oversized_heartbeat_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="the maximum is 8192"):
        decode(spoiled(endpoint=b"x" * HEARTBEAT_BYTES_MAX))


def test_text_from_a_peer_cannot_control_our_terminal() -> None:
    assert decode(spoiled(state="fine\x1b[2J\n")).state == "fine�[2J�"


def test_heartbeat_is_newer_if_its_serial_or_its_incarnation_is_higher() -> None:
    """A node has a higher incarnation after each start, and then counts its heartbeats anew."""
    later, earlier = replace(FULL, serial=4), replace(FULL, serial=2)
    assert FULL.follows(None)
    assert later.follows(FULL)
    assert not earlier.follows(FULL)
    assert not FULL.follows(FULL)
    assert replace(earlier, incarnation=8).follows(FULL)


@pytest.mark.parametrize("suspect", ["", "ann", PEER[:-1]])
def test_report_cannot_name_an_invalid_peer_id_as_a_suspect(suspect: str) -> None:
    """No peer would accept our heartbeats as long as they contained an invalid peer id."""
    with pytest.raises(LocalProtocolError, match="not a peer id"):
        ReduceReport(5, 1, None, (PEER, PeerId(suspect)))
