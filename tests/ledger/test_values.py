"""Malformed values cannot be constructed, and each value has only one encoding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.apply import genesis
from p2ptrain.ledger.chain.canonical import canonical, parse
from p2ptrain.ledger.chain.decode_values import certified_from_plain, entry_from_plain
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import (
    Certificate,
    Commit,
    Entry,
    Participant,
    Roster,
    Skip,
    SnapshotRef,
    Value,
    promise_message,
    vote_message,
)
from p2ptrain.testing.ledgers import certify, digest, peers, small_rules

A, B, C = peers("a b c")
PART = (Participant(A, 1, 1),)

ILL_FORMED: dict[str, Callable[[], object]] = {
    "participant without tokens": lambda: Participant(A, 0, 1),
    "participant without blocks": lambda: Participant(A, 1, 0),
    "roster without voters": lambda: Roster(0, 0, (), (A,)),
    "voter named twice": lambda: Roster(0, 0, (A, A), ()),
    "voter that is also a learner": lambda: Roster(0, 0, (A,), (A,)),
    "participant that is not a member": lambda: Roster(0, 0, (A,), (), (Participant(B, 1, 1),)),
    "participant named twice": lambda: Roster(0, 0, (A,), (), (Participant(A, 1, 1),) * 2),
    "roster with an unknown schedule": lambda: Roster(0, 0, (A,), (), PART, "star"),  # type: ignore[arg-type]
    "roster with a schedule but without participants": lambda: Roster(0, 0, (A,), (), (), "direct"),
    "roster of a negative step": lambda: Roster(-1, 0, (A,), ()),
    "commit without a digest": lambda: Commit(0, 0, Digest("update")),
    "commit of a negative attempt": lambda: Commit(0, -1, digest("u")),
    "snapshot without a digest": lambda: SnapshotRef(0, Digest("")),
    "snapshot without a state": lambda: Commit(0, 0, digest("u"), SnapshotRef(0, digest("s"))),
    "state without a snapshot": lambda: Commit(0, 0, digest("u"), None, digest("a state")),
    "state without a digest": lambda: Commit(
        0, 0, digest("u"), SnapshotRef(0, digest("s")), Digest("")
    ),
    "skip of a negative step": lambda: Skip(-1),
    "entry at height 0": lambda: Entry(0, digest("p"), Skip(0)),
    "entry without a parent": lambda: Entry(1, Digest("p"), Skip(0)),
    "certificate with a voter twice": lambda: Certificate(1, 0, digest("e"), ((A, b""), (A, b""))),
    "certificate out of order": lambda: Certificate(1, 0, digest("e"), ((B, b""), (A, b""))),
    "rules without founders": lambda: small_rules(""),
    "rules with a founder twice": lambda: small_rules("a a"),
    "rules without steps": lambda: small_rules(outer_steps=0),
}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_malformed_value_cannot_be_made(name: str) -> None:
    with pytest.raises(ValueError):
        ILL_FORMED[name]()


VALUES: tuple[Value, ...] = (
    Roster(1, 0, (A, B), (C,)),
    Roster(1, 2, (A,), (C,), (Participant(C, 5, 1), Participant(A, 7, 2))),
    Roster(1, 2, (A,), (C,), (Participant(C, 5, 1), Participant(A, 7, 2)), "direct"),
    Commit(3, 1, digest("u")),
    Commit(3, 1, digest("u"), SnapshotRef(2, digest("s")), digest("a state")),
    Skip(4),
)


@pytest.mark.parametrize("value", VALUES)
def test_entry_survives_encoding(value: Value) -> None:
    entry = Entry(7, digest("parent"), value)
    again = entry_from_plain(parse(canonical(entry.plain()), bytes_max=10_000))
    assert again == entry
    assert again.digest == entry.digest


def test_certified_entry_survives_encoding() -> None:
    rules = small_rules()
    certified = certify(rules, genesis(rules), Roster(0, 0, (A, B, C), (PeerId("d"),)))
    plain = parse(canonical(certified.plain()), bytes_max=10_000)
    assert certified_from_plain(plain) == certified


def test_digest_covers_every_part_of_an_entry() -> None:
    entries = [Entry(1, digest("p"), value) for value in VALUES]
    entries += [Entry(2, digest("p"), Skip(4)), Entry(1, digest("q"), Skip(4))]
    assert len({entry.digest for entry in entries}) == len(entries)


def test_signed_messages_are_complete_and_unambiguous() -> None:
    rules = small_rules()
    messages = {
        vote_message(rules.run, 1, 0, digest("e")),
        vote_message(rules.run, 1, 1, digest("e")),
        vote_message(rules.run, 2, 0, digest("e")),
        vote_message(rules.run, 1, 0, digest("f")),
        promise_message(rules.run, 1, 0, None, None),
        promise_message(rules.run, 1, 0, 0, digest("e")),
    }
    assert len(messages) == 6
    assert {message.split(b"\n")[0] for message in messages} == {
        b"p2ptrain-vote/1",
        b"p2ptrain-promise/1",
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(0, 2**53 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_canonical_encoding_is_unique(value: object) -> None:
    data = canonical(value)
    assert parse(data, bytes_max=1 << 20) == value
    assert canonical(parse(data, bytes_max=1 << 20)) == data
    assert data.isascii()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"nul", b"[NaN]", b"[Infinity]", b"\xff\xfe", b"[" * 100_000, b"1" * 5000],
    ids=lambda data: repr(data[:12]),
)
def test_message_that_is_not_json_raises_remote_protocol_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(data, bytes_max=200_000)


def test_oversized_message_is_refused_before_decoding() -> None:
    with pytest.raises(RemoteProtocolError, match="the maximum is 10"):
        parse(b"[          ]", bytes_max=10)


def test_block_ids_beyond_the_end_start_a_new_pass_through_the_data() -> None:
    rules: Rules = small_rules()
    assert [rules.data_block(block) for block in (0, 15, 16, 33)] == [0, 15, 0, 1]
