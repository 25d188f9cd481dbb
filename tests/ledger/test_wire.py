"""Messages survive encoding. Malformed messages raise RemoteProtocolError and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.values import (
    DELEGATES_MAX,
    MEMBERS_MAX,
    Branch,
    Entry,
    Heal,
    Participant,
    Roster,
    Skip,
    Terms,
    Vote,
)
from p2ptrain.ledger.messages.messages import (
    MESSAGE_BYTES_MAX,
    Accept,
    Accepted,
    Entries,
    EntriesRequest,
    Message,
    Outcome,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
    ProposeBranch,
    Pruned,
    RefuseBranch,
    Refused,
    SignBranch,
)
from p2ptrain.ledger.messages.wire import decode, encode
from p2ptrain.net.gossip.frames import PAYLOAD_BYTES_MAX
from p2ptrain.testing.ledgers import certify, digest, peers, small_rules

A, B, C = peers("a b c")
RULES = small_rules()
ENTRY = Entry(1, genesis(RULES).head, Roster(0, 0, (A, B, C), (), (Participant(A, 200, 2),)))
CERTIFIED = certify(RULES, genesis(RULES), ENTRY.value)
PROOFS = (PromiseProof(A, None, None, None, b"s"), PromiseProof(B, 0, ENTRY.digest, b"p", b"t"))

MESSAGES: tuple[Message, ...] = (
    Prepare(3, 1),
    Promise(3, 1, None, b"signature"),
    Promise(1, 1, Accepted(0, ENTRY, b"proposed"), b"signature"),
    Propose(0, ENTRY, b"signature"),
    Propose(2, ENTRY, b"signature", PROOFS),
    Accept(Vote(RULES.run, 1, 0, ENTRY.digest, A, b"signature")),
    Refused(1, 0, 4, "this node has promised a later round"),
    Outcome(CERTIFIED),
    EntriesRequest(1),
    Entries(9, (CERTIFIED, CERTIFIED)),
    Entries(0, ()),
    Pruned(9, 4, CERTIFIED.entry.digest),
    ProposeBranch(Entry(1, ENTRY.parent, Branch(0, (A,), (B,)))),
    ProposeBranch(Entry(1, ENTRY.parent, Heal(0, 1, ENTRY.digest))),
    SignBranch(1, ENTRY.digest, b"signature"),
    RefuseBranch(1, "this node sees a quorum"),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_survives_encoding(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


JUNK: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(MESSAGES), st.data())
def test_message_with_a_broken_field_is_refused_or_still_valid(
    message: Message, data: st.DataObject
) -> None:
    """Replace one part of a message, at any depth, with junk. `decode` may raise only
    RemoteProtocolError.
    """
    plain = json.loads(encode(message))
    place = plain
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = data.draw(JUNK)
    try:
        again = decode(json.dumps(plain).encode())
    except RemoteProtocolError:
        return
    assert decode(encode(again)) == again


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {},
        {"kind": 3},
        {"kind": "prepare", "height": 1},
        {"kind": "prepare", "height": 1, "round": True},
        {"kind": "prepare", "height": 1, "round": -1},
        {"kind": "prepare", "height": 2**53, "round": 0},
        {"kind": "prepare", "height": 1, "round": 0, "more": 1},
        {"kind": "refused", "height": 1, "round": 0, "promised": 0, "reason": "x" * 301},
        {"kind": "entries", "height": 1, "certified": [None] * 65},
    ],
    ids=str,
)
def test_malformed_fields_are_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(json.dumps(plain).encode())


def test_long_reason_is_shortened_before_it_is_sent() -> None:
    said = decode(encode(Refused(1, 0, 0, "because " * 100)))
    assert isinstance(said, Refused)
    assert len(said.reason) == 300


def test_oversized_message_is_refused_by_sender_and_receiver() -> None:
    with pytest.raises(RemoteProtocolError):
        decode(b" " * (MESSAGE_BYTES_MAX + 1))
    page = Entries(1, (certify(RULES, genesis(RULES), Skip(0)),) * 4000)
    with pytest.raises(LocalProtocolError):
        encode(page)


def test_largest_proposal_can_be_gossiped() -> None:
    """The largest proposal contains the promises of all voters, each with an accepted value."""
    names = tuple(PeerId(f"12D3KooW{index:044d}") for index in range(MEMBERS_MAX))
    parts = tuple(Participant(name, 10**9, 10**4) for name in names)
    terms = Terms(1, 1, digest("amendment"), 1, voters=names[:DELEGATES_MAX])
    roster = Roster(0, 0, names, (), parts, terms=terms)
    entry, signed = Entry(1, genesis(RULES).head, roster), bytes(64)
    proofs = tuple(PromiseProof(name, 99, entry.digest, signed, signed) for name in names)
    assert len(encode(Propose(100, entry, signed, proofs))) <= PAYLOAD_BYTES_MAX


def test_largest_roster_and_its_certificate_fit_into_one_message() -> None:
    names = tuple(PeerId(f"12D3KooW{index:044d}") for index in range(MEMBERS_MAX))
    parts = tuple(Participant(name, 10**9, 10**4) for name in names)
    rules = small_rules(" ".join(names))
    certified = certify(rules, genesis(rules), Roster(0, 0, names, (), parts))
    assert len(encode(Outcome(certified))) < MESSAGE_BYTES_MAX / 2
