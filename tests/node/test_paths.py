"""A path is the network between two peers, with its delay and rate. A node knows paths from its own
measurements, and from the reports of peers about their own paths."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.peers.path_table import (
    BYTES_MIN,
    CHANGED_BY,
    DELAY_MAX_MS,
    HEARD_MAX,
    RATE_MAX,
    TOLD_MAX,
    TURN_S,
    Path,
    PathTable,
)
from p2ptrain.ring import Paths

ME, ANN, BOB, CAI = (PeerId(name) for name in ("me", "ann", "bob", "cai"))
ALL = {ME, ANN, BOB, CAI}
MB = 1_000_000


def test_rate_is_the_mean_of_the_old_rate_and_the_new_measurement() -> None:
    book = PathTable(ME)
    book.moved(ANN, 100 * MB, 1.0)
    assert book.mine == {ANN: Path(100_000)}
    book.moved(ANN, 50 * MB, 1.0)
    assert book.mine == {ANN: Path(75_000)}


def test_transfer_that_may_only_have_filled_a_buffer_is_ignored() -> None:
    book = PathTable(ME)
    book.moved(ANN, BYTES_MIN - 1, 0.0001)
    book.at_least(BOB, BYTES_MIN - 1, 0.0001)
    assert book.mine == {}


def test_fetch_from_several_peers_can_only_raise_a_measured_rate() -> None:
    """The peers share our connection, so the path may be faster than such a fetch shows."""
    book = PathTable(ME)
    book.at_least(ANN, 20 * MB, 1.0)
    assert book.mine[ANN].rate == 20_000
    book.at_least(ANN, 19 * MB, 1.0)
    assert book.mine[ANN].rate == 20_000
    book.at_least(ANN, 30 * MB, 1.0)
    assert book.mine[ANN].rate == 30_000


def test_delay_is_derived_from_the_shortest_time_to_connect() -> None:
    book = PathTable(ME)
    for seconds in (0.3, 0.6, 0.24):
        book.connected(ANN, seconds)
    assert book.mine == {ANN: Path(0, 40)}


def test_measured_rates_and_delays_are_clamped_to_valid_values() -> None:
    book = PathTable(ME)
    book.found_rate(ANN, 1, 1e9)
    book.found_rate(BOB, 1 << 60, 0.0)
    book.found_delay(ANN, 0.0)
    book.found_delay(BOB, 1e9)
    assert book.mine == {ANN: Path(1, 1), BOB: Path(RATE_MAX, DELAY_MAX_MS)}


# ── reports to other peers ───────────────────────────────────────────────────────────────────────


def test_only_large_changes_are_reported_and_not_too_often() -> None:
    book = PathTable(ME)
    assert not book.has_news(TURN_S)
    book.found_rate(ANN, 100 * MB, 1.0)
    assert book.has_news(TURN_S)
    book.choose_page(TURN_S)
    assert book.page == ((ANN, Path(100_000)),)
    book.mine[ANN] = Path(round(100_000 * CHANGED_BY))
    assert not book.has_news(3 * TURN_S)
    book.mine[ANN] = Path(round(100_000 * CHANGED_BY) + 1)
    assert not book.has_news(1.9 * TURN_S)
    assert book.has_news(2 * TURN_S)


def test_page_is_short_and_all_paths_appear_in_turn() -> None:
    book = PathTable(ME)
    peers = [PeerId(f"peer-{n:02}") for n in range(2 * TOLD_MAX + 1)]
    for peer in peers:
        book.found_rate(peer, MB, 1.0)
    pages = []
    for turn in range(3):
        book.choose_page(turn * TURN_S)
        pages.append([peer for peer, _ in book.page])
    assert [len(page) for page in pages] == [TOLD_MAX] * 3
    assert {peer for page in pages for peer in page} == set(peers)
    book.found_rate(peers[5], 100 * MB, 1.0)
    book.choose_page(4 * TURN_S)
    assert peers[5] in dict(book.page)


def test_report_counts_only_for_the_senders_own_paths_to_members() -> None:
    book = PathTable(ME)
    stranger = PeerId("stranger")
    book.note_report(ANN, [(BOB, Path(5)), (ANN, Path(6)), (stranger, Path(7))], ALL)
    book.note_report(stranger, [(BOB, Path(8))], ALL)
    assert book.heard == {ANN: {BOB: Path(5)}}


def test_reports_of_a_peer_are_bounded_in_size_and_number() -> None:
    book = PathTable(ME)
    many = {PeerId(f"peer-{n:04}") for n in range(HEARD_MAX + 5)} | {ANN}
    book.note_report(ANN, [(peer, Path(1 << 53, 1 << 53)) for peer in sorted(many)], many)
    assert len(book.heard[ANN]) == HEARD_MAX
    assert set(book.heard[ANN].values()) == {Path(RATE_MAX, DELAY_MAX_MS)}


# ── the resulting rates ───────────────────────────────────────────────────────────────────────────


def test_path_has_the_lower_rate_and_delay_of_those_that_its_ends_report() -> None:
    book = PathTable(ME)
    book.found_rate(ANN, 10 * MB, 1.0)
    book.found_delay(ANN, 0.02)
    book.note_report(ANN, [(ME, Path(99_000, 30)), (BOB, Path(7000, 0))], ALL)
    book.note_report(BOB, [(ANN, Path(8000, 5))], ALL)
    assert book.between([CAI, BOB, ME, ANN], lambda one, other: False) == Paths(
        {(ANN, ME): 10e6, (ANN, BOB): 7e6}, {(ANN, ME): 0.02, (ANN, BOB): 0.005}
    )
    assert book.is_measured(BOB, ANN)
    assert not book.is_measured(BOB, CAI)


def test_rate_between_two_peers_that_cannot_be_dialled_is_zero() -> None:
    book = PathTable(ME)
    book.note_report(ANN, [(BOB, Path(7000))], ALL)
    apart, together = [ANN, BOB], list[PeerId]()
    for pair, rate in ((apart, 0.0), (together, 7e6)):
        found = book.between([ANN, BOB, CAI], lambda *two, pair=pair: list(two) == pair)
        assert found.rates == {(ANN, BOB): rate}


def test_paths_of_a_former_member_are_forgotten() -> None:
    book = PathTable(ME)
    book.found_rate(ANN, MB, 1.0)
    book.found_rate(BOB, MB, 1.0)
    book.note_report(ANN, [(BOB, Path(1)), (CAI, Path(2))], ALL)
    book.note_report(BOB, [(CAI, Path(2))], ALL)
    book.choose_page(0.0)
    book.keep_only({ME, ANN, CAI})
    assert (book.mine, book.heard) == ({ANN: Path(1000)}, {ANN: {CAI: Path(2)}})
    book.choose_page(TURN_S)
    assert book.page == ((ANN, Path(1000)),)
