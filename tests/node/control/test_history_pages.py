"""Members tell the history of the run in signed, bounded pages; tokens come from the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.node.control.series.history_server import page_of
from p2ptrain.observe.series import PeerStepRow, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.peers.series.history_pages import (
    KIND,
    PAGE_BYTES_MAX,
    ROWS_MAX,
    STEPS_MAX,
    HistoryPage,
    HistoryRequest,
    decode_page,
    decode_request,
    encode_body,
    encode_page,
    encode_request,
)
from p2ptrain.testing.series_history import history, write_history

RUN = RunId("ab" * 32)
TELLER, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
STEP = StepRow(3, time=9.0, attempt=0, skipped=0, members=1, tokens=5, tokens_total=5, loss=2.5)
PEER = PeerStepRow(
    3, OTHER.peer, tokens=5, contributed=1, train_ms=700, loss=2.5, device="cpu", version="0.1.0"
)
PAGE = HistoryPage((STEP,), (PEER,))


def told_by_teller(page: HistoryPage) -> HistoryPage:
    return HistoryPage(
        tuple(replace(row, told_by=TELLER.peer) for row in page.steps),
        tuple(replace(row, told_by=TELLER.peer) for row in page.peers),
    )


def test_request_is_read_back() -> None:
    request = HistoryRequest(RUN, 1, 600)
    assert decode_request(encode_request(request)) == request
    for bad in ({"first": -1}, {"last": 1 << 40}, {"run": "x"}, {"first": "1"}):
        with pytest.raises(RemoteProtocolError):
            decode_request(pack({"run": RUN, "first": 1, "last": 2} | bad))


@pytest.mark.parametrize("page", [PAGE, HistoryPage()])
def test_page_is_read_back_as_the_word_of_its_teller(page: HistoryPage) -> None:
    assert decode_page(encode_page(page, RUN, TELLER), RUN, TELLER.peer) == told_by_teller(page)


def test_largest_page_fits_into_its_bytes() -> None:
    steps = tuple(
        StepRow(
            each + 1,
            time=1.79e9 + each / 3,
            tokens=1 << 40,
            tokens_total=1 << 50,
            loss=1 / 3,
            held_out=1 / 3,
            learning_rate=1 / 3,
            gradient_norm=1 / 3,
        )
        for each in range(STEPS_MAX)
    )
    full = PeerStepRow(
        1,
        "",
        *(1 << 40, *(1 << 31,) * 6, 1 << 50, 1 << 50, *(1 / 3,) * 5, "other", "9" * 15, 1),
    )
    names = [Identity.from_seed(bytes([each]) * 32).peer for each in range(ROWS_MAX // STEPS_MAX)]
    peers = tuple(replace(full, step=step.step, peer=name) for step in steps for name in names)
    data = encode_page(HistoryPage(steps, peers), RUN, TELLER)
    assert len(data) <= PAGE_BYTES_MAX
    assert len(decode_page(data, RUN, TELLER.peer).peers) == ROWS_MAX


def spoilt(change: Callable[[dict[str, object]], object]) -> bytes:
    """Return PAGE with a change of its body, signed again."""
    said = unpack(encode_body(PAGE, RUN), bytes_max=PAGE_BYTES_MAX)
    assert isinstance(said, dict)
    change(said)
    return KIND.signed(pack(said), TELLER)


def with_step(place: int, value: object) -> Callable[[dict[str, object]], object]:
    return lambda said: said["steps"][0].__setitem__(place, value)  # type: ignore[index]


def with_peer(place: int, value: object) -> Callable[[dict[str, object]], object]:
    return lambda said: said["peers"][0].__setitem__(place, value)  # type: ignore[index]


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(run="cd" * 32),
        lambda said: said.update(names=["not a peer id"]),
        lambda said: said.update(steps=[]),
        lambda said: said.update(steps=said["steps"] * 2),
        lambda said: said.update(steps=said["steps"] * 1000),
        lambda said: said.update(peers=said["peers"] * 5000),
        lambda said: said.update(peers=[[3, 0]]),
        lambda said: said.update(peers=[None]),
        with_step(0, -1),
        with_step(0, "3"),
        with_step(1, 9),
        with_step(6, 1 << 60),
        with_step(8, 1e9),
        with_step(9, -1.0),
        with_step(12, 0),
        with_step(12, 4),
        with_step(12, None),
        with_peer(0, 4),
        with_peer(1, 1),
        with_peer(1, -1),
        with_peer(2, -5),
        with_peer(4, 0.5),
        with_peer(12, 1e9),
        with_peer(14, 7.0),
        with_peer(17, "abacus"),
        with_peer(17, 3),
        with_peer(18, "\x1b[2J"),
        with_peer(18, "x" * 16),
    ],
)
def test_malformed_page_is_refused(change: Callable[[dict[str, object]], object]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_page(spoilt(change), RUN, TELLER.peer)


def test_page_of_another_signer_or_run_is_refused() -> None:
    data = encode_page(PAGE, RUN, TELLER)
    for run, teller in ((RUN, OTHER.peer), (RunId("cd" * 32), TELLER.peer)):
        with pytest.raises(RemoteProtocolError):
            decode_page(data, run, teller)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_page(data, RUN, TELLER.peer)


def test_server_tells_the_newest_rows_of_the_range(tmp_path: Path) -> None:
    series = tmp_path / "series.db"
    write_history(series, RUN, peers=4, steps=100)
    page = page_of(series, HistoryRequest(RUN, 10, 90))
    assert [row.step for row in page.steps] == list(range(27, 91))
    expected = {
        (row.step, row.peer, row.train_ms)
        for rows in history(4, 100)
        for row in rows
        if isinstance(row, PeerStepRow) and 27 <= row.step <= 90
    }
    assert {(row.step, row.peer, row.train_ms) for row in page.peers} == expected
    assert page_of(series, HistoryRequest(RUN, 200, 300)) == HistoryPage()
    assert page_of(tmp_path / "none.db", HistoryRequest(RUN, 1, 9)) == HistoryPage()


def test_page_with_very_many_peers_has_fewer_steps(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path / "series.db", RUN)
    for step in range(1, 11):
        rows = (PeerStepRow(step, f"peer {each}", tokens=1) for each in range(900))
        writer.write([StepRow(step, time=float(step)), *rows])
    writer.write([StepRow(11)])
    writer.close()
    page = page_of(writer.path, HistoryRequest(RUN, 1, 20))
    assert [row.step for row in page.steps] == [7, 8, 9, 10]
    assert len(page.peers) == 3600
