"""The sentences that tell a user how other members reach the node."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.peers.reach_evidence import PortsReached
from p2ptrain.peers.reach_messages import (
    CERTIFICATE_BYTES_MAX,
    DialOutcome,
    ReachAnswer,
    ReachQuestion,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from p2ptrain.peers.reach_verdict import OpenedPorts, OtherWays, OwnPlace, Reach, verdict

PLACE = OwnPlace("192.168.1.5", 4201, 4202)
UPNP = OpenedPorts("UPnP", 4201, 4202, 1800.0)
BOTH, NEITHER, UNSURE = PortsReached(True, True), PortsReached(False, False), PortsReached()


def test_open_node_is_told_its_ports() -> None:
    words = verdict(BOTH, PLACE).words
    assert words == "open: members connect to you directly at TCP 4201 and 4202"


def test_mapped_ports_are_named_with_their_protocol() -> None:
    assert verdict(BOTH, PLACE, UPNP).words == (
        "mapped: your router opened TCP 4201 and 4202 by UPnP, renewed every 30 min"
    )


def test_punched_node_has_nothing_to_do() -> None:
    assert verdict(NEITHER, PLACE, None, OtherWays(punched=3, members=7)).words == (
        "punched: your provider shares one address among customers; peers reach you by hole "
        "punching; nothing to do"
    )


def test_relayed_node_is_told_which_port_to_forward_and_where() -> None:
    assert verdict(NEITHER, PLACE, None, OtherWays(punched=5, relayed=2, members=7)).words == (
        "relayed: 2 of 7 members reach you through others; forward TCP 4202 to 192.168.1.5 for "
        "more speed"
    )


def test_half_open_node_is_told_the_missing_port() -> None:
    assert verdict(PortsReached(True, False), PLACE).words == (
        "half: control port reached, data port not: forward TCP 4202 too"
    )
    assert verdict(PortsReached(False, True), PLACE).words == (
        "half: data port reached, control port not: forward TCP 4201 too"
    )


def test_carrier_is_named_if_the_router_did_its_part() -> None:
    assert verdict(NEITHER, PLACE, UPNP).words == (
        "mapped but blocked by the carrier: your router opened TCP 4201 and 4202 by UPnP, but your "
        "provider blocks connections from outside; ask your provider for a public address, or use "
        "IPv6"
    )
    punched = verdict(NEITHER, PLACE, UPNP, OtherWays(punched=1, members=2))
    assert "peers reach you by hole punching or through others" in punched.sentence


def test_closed_node_is_told_what_to_forward() -> None:
    assert verdict(NEITHER, PLACE).words == (
        "closed: members cannot connect to you, so you connect to them, if necessary by hole "
        "punching or through others; to be reached directly, forward TCP 4201 and 4202 to "
        "192.168.1.5 on your router"
    )


def test_node_without_nat_is_told_to_open_its_firewall() -> None:
    place = replace(PLACE, translated=False)
    assert verdict(NEITHER, place).sentence.endswith(", open TCP 4201 and 4202 in your firewall")
    assert verdict(PortsReached(True, False), place).words == (
        "half: control port reached, data port not: open TCP 4202 in your firewall too"
    )


def test_node_says_that_it_does_not_know_yet() -> None:
    assert verdict(UNSURE, PLACE).words == (
        "unknown: too few members at other sites have tried to connect to you yet"
    )


@pytest.mark.parametrize("opened", [None, UPNP])
@pytest.mark.parametrize("ways", [OtherWays(), OtherWays(1, 0, 3), OtherWays(1, 1, 3)])
def test_direct_connections_are_claimed_only_if_both_ports_are_reached(
    opened: OpenedPorts | None, ways: OtherWays
) -> None:
    for control, data in product((True, False, None), repeat=2):
        found = verdict(PortsReached(control, data), PLACE, opened, ways)
        direct = found.reach in (Reach.OPEN, Reach.MAPPED)
        assert direct is bool(data and control)
        assert found.sentence


# ── the messages ─────────────────────────────────────────────────────────────────────────────────


def test_messages_survive_the_wire() -> None:
    question = ReachQuestion(4201, 4202, b"certificate")
    answer = ReachAnswer("203.0.113.7", DialOutcome.REACHED, DialOutcome.ELSE)
    assert decode_question(encode_question(question)) == question
    assert decode_answer(encode_answer(answer)) == answer


GOOD_QUESTION = {"control": 4201, "data": 4202, "certificate": b"c"}


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "10.0.0.1"},
        {"control": 0},
        {"data": 0},
        {"data": -1},
        {"data": 1 << 16},
        {"data": True},
        {"certificate": b""},
        {"certificate": bytes(CERTIFICATE_BYTES_MAX + 1)},
    ],
    ids=str,
)
def test_malformed_question_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_question(pack(GOOD_QUESTION | changes))


@pytest.mark.parametrize(
    "changes",
    [{"host": "example.org"}, {"host": "fe80::1%eth0"}, {"data": "perhaps"}, {"control": 1}],
    ids=str,
)
def test_malformed_answer_is_refused(changes: dict[str, object]) -> None:
    good = {"host": "203.0.113.7", "control": "reached", "data": "silent"}
    assert decode_answer(pack(good)).data is DialOutcome.SILENT
    with pytest.raises(RemoteProtocolError):
        decode_answer(pack(good | changes))
