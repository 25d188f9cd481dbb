"""Every data block is in exactly one place: in a lease, given back, committed, or never leased."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain import leases
from p2ptrain.ledger.chain.leases import LEASES_HELD_MAX, Leases
from p2ptrain.testing.ledgers import peers

A, B, C = peers("a b c")


def test_leases_are_filled_in_order_with_the_next_blocks() -> None:
    book = leases.top_up(Leases({}), (A, B), 3)
    assert book == Leases({A: (0, 1, 2), B: (3, 4, 5)}, (), 6)


def test_returned_blocks_are_leased_first_in_ascending_order() -> None:
    book = leases.top_up(Leases({}), (A, B), 2)
    book = leases.give_back(book, (B, A))
    assert book == Leases({}, (0, 1, 2, 3), 4)
    assert leases.top_up(book, (C,), 5) == Leases({C: (0, 1, 2, 3, 4)}, (), 5)


def test_committed_blocks_are_removed_from_the_front_of_a_lease() -> None:
    book = leases.top_up(Leases({}), (A, B), 3)
    book = leases.top_up(leases.commit(book, [(A, 2)]), (A, B), 3)
    assert book.held == {A: (2, 6, 7), B: (3, 4, 5)}


def test_leases_are_extended_after_skipped_steps_up_to_a_bound() -> None:
    book = leases.top_up(Leases({}), (A,), 2)
    for _ in range(10):
        book = leases.extend(book, (A,), 2)
    assert book.held[A] == tuple(range(2 * LEASES_HELD_MAX))


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["top up", "extend", "commit", "give back"]),
        st.sets(st.sampled_from([A, B, C]), min_size=1),
        st.integers(1, 3),
    ),
    max_size=30,
)


@given(MOVES)
def test_no_sequence_of_moves_loses_or_duplicates_a_block(
    moves: list[tuple[str, set[PeerId], int]],
) -> None:
    book, committed = Leases({}), []
    for move, some, count in moves:
        members = sorted(some)
        match move:
            case "top up":
                book = leases.top_up(book, members, count)
            case "extend":
                book = leases.extend(book, members, count)
            case "give back":
                book = leases.give_back(book, members)
            case _:
                able = [(m, 1) for m in members if book.held.get(m)]
                committed += [book.held[m][0] for m, _ in able]
                book = leases.commit(book, able)
        held = [block for lease in book.held.values() for block in lease]
        assert sorted([*held, *book.returned, *committed]) == list(range(book.next_block))
