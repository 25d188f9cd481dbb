"""Members tell events and samples in signed, bounded pages. Events have no words of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.names import label, peer_name
from p2ptrain.observe.series import EventRow, SampleRow, ToldEventRow, ToldSampleRow
from p2ptrain.observe.series.told import as_event
from p2ptrain.peers.series import history_pages
from p2ptrain.peers.series.event_pages import (
    EVENTS_MAX,
    KIND,
    PAGE_BYTES_MAX,
    SAMPLES_MAX,
    EventPage,
    decode_events,
    encode_events,
    events_body,
)
from p2ptrain.peers.series.step_report import STEP_MAX

RUN = RunId("ab" * 32)
TELLER, OTHER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
JOINED = EventRow(9.0, 3, "join", OTHER.peer, "brave-otter joined.")
SKIPPED = EventRow(9.5, 4, "skip", "", "The members skipped outer step 4.")
SAMPLE = SampleRow(20, 1, OTHER.peer, " there was a\nfox")


def test_page_has_the_events_that_concern_the_run_without_their_texts() -> None:
    mine = [
        EventRow(9.0, 3, "warning", "", "The disk of /home/ann is full."),
        EventRow(9.0, 3, "pause", TELLER.peer, "This node paused."),
        EventRow(9.0, 3, "join", "", "9 more peers: joined."),
        EventRow(9.0, 3, "stall", "", "This node waits."),
    ]
    data = encode_events([JOINED, *mine, SKIPPED], [SAMPLE], RUN, TELLER)
    assert decode_events(data, RUN, TELLER.peer) == EventPage(
        (
            ToldEventRow(3, "join", OTHER.peer, 9.0, TELLER.peer),
            ToldEventRow(4, "skip", "", 9.5, TELLER.peer),
        ),
        (ToldSampleRow(20, 1, OTHER.peer, " there was a\nfox", TELLER.peer),),
    )
    for secret in (b"brave-otter", b"/home/ann", b"paused", b"more peers", b"waits"):
        assert secret not in data


def test_sentence_of_a_told_event_is_our_own_and_names_its_teller() -> None:
    said = [
        as_event(ToldEventRow(3, kind, peer, 9.0, TELLER.peer)).text
        for kind, peer in (("join", OTHER.peer), ("retry", ""))
    ]
    by = f"As reported by {peer_name(TELLER.peer)}"
    assert said == [
        f"{by}: {label(OTHER.peer)} joined.",
        f"{by}: the exchange of outer step 3 was repeated.",
    ]


def test_largest_page_fits_into_its_bytes() -> None:
    peers = [Identity.from_seed(each.to_bytes(32, "big")).peer for each in range(EVENTS_MAX + 50)]
    events = [EventRow(1.79e9 / 3, STEP_MAX, "join", peer, "") for peer in peers]
    samples = [SampleRow(STEP_MAX, 7, peer, "\U0001f98a" * 4000) for peer in peers[::-1][:50]]
    page = encode_events(events, samples, RUN, TELLER)
    assert len(page) <= PAGE_BYTES_MAX
    told = decode_events(page, RUN, TELLER.peer)
    assert (len(told.events), len(told.samples)) == (EVENTS_MAX, SAMPLES_MAX)
    assert {len(each.text) for each in told.samples} == {1000}


def with_event(place: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["events"][0].__setitem__(place, value)


def with_sample(place: int, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["samples"][0].__setitem__(place, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(run="cd" * 32),
        lambda said: said.update(names=["not a peer id"]),
        lambda said: said.update(names=said["names"] * 1000),
        lambda said: said.update(events=said["events"] * 200),
        lambda said: said.update(samples=said["samples"] * 40),
        lambda said: said.update(events=[None]),
        lambda said: said.update(samples=[[20, 1, 0]]),
        lambda said: said.update(more="text"),
        with_event(0, -1),
        with_event(0, 1 << 60),
        with_event(0, True),
        with_event(1, 9),
        with_event(2, "warning"),
        with_event(2, "<b>join</b>"),
        with_event(2, "skip"),
        with_event(3, None),
        with_event(3, 7),
        with_event(3, -1),
        with_event(3, False),
        with_sample(0, "20"),
        with_sample(1, 8),
        with_sample(1, -1),
        with_sample(2, 7),
        with_sample(2, None),
        with_sample(3, "x" * 1001),
        with_sample(3, "\x1b[2J"),
        with_sample(3, "\u202e"),
        with_sample(3, b"bytes"),
    ],
)
def test_malformed_page_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    said = unpack(events_body([JOINED, SKIPPED], [SAMPLE], RUN), bytes_max=PAGE_BYTES_MAX)
    assert isinstance(said, dict)
    change(said)
    with pytest.raises(RemoteProtocolError):
        decode_events(KIND.signed(pack(said), TELLER), RUN, TELLER.peer)


def test_page_of_another_signer_kind_or_run_is_refused() -> None:
    body = events_body([JOINED], [], RUN)
    for data, run, teller in (
        (KIND.signed(body, TELLER), RUN, OTHER.peer),
        (KIND.signed(body, TELLER), RunId("cd" * 32), TELLER.peer),
        (history_pages.KIND.signed(body, TELLER), RUN, TELLER.peer),
    ):
        with pytest.raises(RemoteProtocolError):
            decode_events(data, run, teller)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_events(data, RUN, TELLER.peer)
