"""Members measure the loss of θ on held-out blocks together. A pure function gives each peer a
share of the blocks, and a peer's report counts only for its own share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import PeerId
from p2ptrain.peers.heartbeat import SHARE_BLOCKS_MAX, ValidationReport
from p2ptrain.peers.validation_tally import (
    STEPS_KEPT,
    WAIT_S,
    Validation,
    ValidationShare,
    ValidationTally,
    divide_blocks,
)

A, B, C, D = (PeerId(name) for name in "abcd")
BLOCKS, BLOCK_TOKENS = 8, 16

peers = st.lists(st.integers(0, 400).map(lambda n: PeerId(f"p{n:03}")), min_size=1, max_size=60)


@given(st.integers(1, 3000), peers, st.integers(0, 2**40))
def test_every_block_is_in_one_share_and_shares_have_almost_equal_sizes(
    blocks: int, who: list[PeerId], step: int
) -> None:
    shares = divide_blocks(blocks, who, step)
    taken = [block for share in shares.values() for block in range(share.first, share.stop)]
    assert sorted(taken) == list(range(blocks))
    sizes = [share.stop - share.first for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert len(shares) == min(blocks, len(set(who)))
    assert divide_blocks(blocks, list(reversed(who)), step) == shares


def test_shares_rotate_among_the_peers_from_step_to_step() -> None:
    assert divide_blocks(2, [A, B, C], 0) == {B: ValidationShare(0, 1), C: ValidationShare(1, 2)}
    assert divide_blocks(2, [A, B, C], 1) == {C: ValidationShare(0, 1), A: ValidationShare(1, 2)}
    assert divide_blocks(2, [A, B, C], 2) == {A: ValidationShare(0, 1), B: ValidationShare(1, 2)}
    assert divide_blocks(8, [], 0) == {}


def test_share_is_limited_and_blocks_beyond_the_limit_are_not_measured() -> None:
    """A trainer gets all blocks of its share in one message, whose size is limited."""
    assert divide_blocks(3 * SHARE_BLOCKS_MAX, [A, B], 0) == {
        A: ValidationShare(0, SHARE_BLOCKS_MAX),
        B: ValidationShare(3 * SHARE_BLOCKS_MAX // 2, 5 * SHARE_BLOCKS_MAX // 2),
    }


def report(step: int, share: ValidationShare, loss: float) -> ValidationReport:
    """Return the report of a peer that measured this mean loss on its share."""
    tokens = (share.stop - share.first) * BLOCK_TOKENS
    return ValidationReport(step, share.first, share.stop, tokens, loss * tokens)


@pytest.fixture
def tally() -> ValidationTally:
    """Return a tally for the θ of step 6, which three peers measure. It began at 100 s."""
    tally = ValidationTally(BLOCKS, BLOCK_TOKENS)
    assert tally.begin(6, SHARES, 100.0)
    return tally


SHARES = divide_blocks(BLOCKS, [A, B, C], 6)
"""The shares of three peers: A has 2 blocks, and B and C have 3 each."""


def test_mean_is_weighted_by_tokens_and_shown_with_its_block_count(
    tally: ValidationTally,
) -> None:
    assert tally.newest is None
    assert str(tally.validation(6)) == "none of 8 held-out blocks"
    assert tally.note_report(A, report(6, SHARES[A], 2.0)) == ""
    assert tally.note_report(B, report(6, SHARES[B], 4.0)) == ""
    assert tally.newest == Validation(6, 3.2, 80, 5, 8, (C,))
    assert str(tally.newest) == "3.200 over 5 of 8 held-out blocks"
    assert tally.note_report(C, report(6, SHARES[C], 4.8)) == ""
    assert tally.newest is not None
    assert tally.newest.loss == pytest.approx(3.8)
    assert replace(tally.newest, loss=0.0) == Validation(6, 0.0, 128, 8, 8, ())
    assert str(tally.newest) == "3.800 over all 8 held-out blocks"
    assert str(Validation(6, 3.8, 16, 1, 1, ())) == "3.800 over 1 held-out block"


def test_mean_does_not_depend_on_the_order_of_reports(tally: ValidationTally) -> None:
    other = ValidationTally(BLOCKS, BLOCK_TOKENS)
    other.begin(6, SHARES, 0.0)
    reports = {A: 0.1, B: 999.9, C: 0.3}
    for peer, loss in reports.items():
        tally.note_report(peer, report(6, SHARES[peer], loss))
    for peer, loss in reversed(reports.items()):
        other.note_report(peer, report(6, SHARES[peer], loss))
    assert tally.newest == other.newest


@pytest.mark.parametrize(
    ("peer", "said", "refusal"),
    [
        (D, report(6, SHARES[A], 2.0), "no share"),
        (B, report(6, SHARES[A], 2.0), "its share is blocks 2 to 4"),
        (B, report(6, ValidationShare(0, 8), 2.0), "measured blocks 0 to 7"),
        (B, report(6, ValidationShare(2, 4), 2.0), "measured blocks 2 to 3"),
        (B, ValidationReport(6, 2, 5, 49, 10.0), "49 tokens; its share has 48"),
        (B, ValidationReport(6, 2, 5, 1, 10.0), "1 token; its share has 48"),
        (A, report(6, SHARES[A], 2.5), "a different result for outer step 6"),
    ],
)
def test_report_that_contradicts_the_share_or_an_earlier_one_is_refused(
    tally: ValidationTally, peer: PeerId, said: ValidationReport, refusal: str
) -> None:
    assert SHARES[B] == ValidationShare(2, 5)
    tally.note_report(A, report(6, SHARES[A], 2.0))
    before = tally.validation(6)
    assert refusal in tally.note_report(peer, said)
    assert tally.validation(6) == before


def test_report_counts_once_and_only_for_a_step_that_is_measured(
    tally: ValidationTally,
) -> None:
    once = report(6, SHARES[A], 2.0)
    assert [tally.note_report(A, each) for each in (once, once, report(7, SHARES[A], 9.0))] == [
        ""
    ] * 3
    assert tally.newest == Validation(6, 2.0, 32, 2, 8, (B, C))


def test_only_the_newest_measurements_are_kept(tally: ValidationTally) -> None:
    assert not tally.begin(6, SHARES, 0.0)
    for step in range(7, 7 + STEPS_KEPT):
        assert tally.begin(step, divide_blocks(BLOCKS, [A], step), 0.0)
    tally.note_report(A, report(6, SHARES[A], 2.0))
    assert tally.newest is None
    tally.note_report(A, report(7, ValidationShare(0, 8), 2.0))
    tally.note_report(A, report(9, ValidationShare(0, 8), 3.0))
    assert tally.newest == Validation(9, 3.0, 128, 8, 8, ())


def nobody(_: PeerId) -> bool:
    return False


def test_result_is_published_once_as_soon_as_all_have_reported(tally: ValidationTally) -> None:
    for peer in (A, B, C):
        assert tally.settled(100.0, nobody) == []
        tally.note_report(peer, report(6, SHARES[peer], 2.0))
    assert tally.settled(100.0, nobody) == [Validation(6, 2.0, 128, 8, 8, ())]
    assert tally.settled(100.0 + 2 * WAIT_S, nobody) == []


def test_result_without_a_peer_that_is_down_names_that_peer(tally: ValidationTally) -> None:
    tally.note_report(A, report(6, SHARES[A], 2.0))
    tally.note_report(B, report(6, SHARES[B], 2.0))
    assert tally.settled(101.0, nobody) == []
    incomplete = Validation(6, 2.0, 80, 5, 8, (C,))
    assert tally.settled(101.0, lambda peer: peer == C) == [incomplete]
    assert tally.settled(102.0, lambda peer: peer == C) == []
    # If the peer reports later, the complete result is published.
    tally.note_report(C, report(6, SHARES[C], 2.0))
    assert tally.settled(103.0, nobody) == [Validation(6, 2.0, 128, 8, 8, ())]


def test_result_waits_only_a_limited_time_for_peers_that_are_up(
    tally: ValidationTally,
) -> None:
    tally.note_report(A, report(6, SHARES[A], 2.0))
    incomplete = Validation(6, 2.0, 32, 2, 8, (B, C))
    assert tally.settled(99.9 + WAIT_S, nobody) == []
    assert tally.settled(100.1 + WAIT_S, nobody) == [incomplete]
    tally.begin(8, divide_blocks(BLOCKS, [A], 8), 200.0)
    tally.begin(10, divide_blocks(BLOCKS, [A], 10), 201.0)
    nothing = Validation(8, None, 0, 0, 8, (A,))
    assert tally.settled(201.0, nobody) == [nothing]
