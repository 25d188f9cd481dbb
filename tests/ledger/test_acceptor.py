"""A voter never contradicts itself, and its records restore its exact state after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError
from p2ptrain.ledger.chain.values import Entry, Skip
from p2ptrain.ledger.messages.messages import Accepted
from p2ptrain.ledger.paxos.acceptor import Acceptor, restored_acceptors
from p2ptrain.testing.ledgers import digest

LINE = digest("a line")
SIGNED = b"the proposer's"
ONE, OTHER = Entry(5, digest("p"), Skip(0)), Entry(5, digest("p"), Skip(1))


def test_fresh_voter_can_accept_in_round_0_without_a_promise() -> None:
    acceptor = Acceptor(LINE, 5)
    acceptor.accept(0, ONE, SIGNED)
    assert acceptor == Acceptor(LINE, 5, 0, Accepted(0, ONE, SIGNED))


@pytest.mark.parametrize("round", [0, 1, 2])
def test_promise_excludes_earlier_rounds(round: int) -> None:
    acceptor = Acceptor(LINE, 5)
    acceptor.promise(3)
    with pytest.raises(LocalProtocolError):
        acceptor.accept(round, ONE, SIGNED)
    with pytest.raises(LocalProtocolError):
        acceptor.promise(round)


def test_voter_accepts_only_one_entry_in_a_round() -> None:
    acceptor = Acceptor(LINE, 5)
    acceptor.accept(1, ONE, SIGNED)
    assert not acceptor.may_accept(1, OTHER)
    assert acceptor.may_accept(1, ONE)
    assert acceptor.may_accept(2, OTHER)


def test_entry_of_a_different_height_is_not_accepted() -> None:
    with pytest.raises(LocalProtocolError):
        Acceptor(LINE, 6).accept(0, ONE, SIGNED)


MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.booleans()), max_size=12)


@given(MOVES)
def test_records_restore_the_voter_after_any_promises_and_votes(
    moves: list[tuple[bool, int, bool]],
) -> None:
    acceptor, records = Acceptor(LINE, 5), []
    for promises, round, first in moves:
        entry = ONE if first else OTHER
        if promises and round > acceptor.promised:
            records.append(acceptor.promise(round))
        elif not promises and acceptor.may_accept(round, entry):
            records.append(acceptor.accept(round, entry, SIGNED))
        assert (
            restored_acceptors(records, decided={LINE: 4}).get((LINE, 5), Acceptor(LINE, 5))
            == acceptor
        )
        assert (
            restored_acceptors(acceptor.records(), decided={LINE: 4}).get(
                (LINE, 5), Acceptor(LINE, 5)
            )
            == acceptor
        )
        assert len(acceptor.records()) <= 2


def test_records_of_decided_heights_are_forgotten() -> None:
    old, new = Acceptor(LINE, 5), Acceptor(LINE, 6)
    records = [old.promise(2), new.promise(1)]
    assert restored_acceptors(records, decided={LINE: 5}) == {(LINE, 6): new}


@pytest.mark.parametrize("record", [b"", b"{}", b'{"height":1,"round":0}', b"\x00" * 40])
def test_voter_with_unreadable_records_does_not_start(record: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        restored_acceptors([record], decided={})
