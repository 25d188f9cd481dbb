"""A relay serves participants of the current attempt, within its limits."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane.relaying import Refusal, Refused, RelayLimits, RelayRequest
from p2ptrain.dataplane.relaying.messages import RelayKey
from p2ptrain.dataplane.relaying.policy import (
    ASKS_AT_ONCE,
    FETCH_S,
    OVER_THE_DAY,
    REFUSED_S,
    VISITOR_FETCH_S,
    EndedEdge,
    NotYet,
    RelayBook,
    is_idle,
    is_over,
    judge,
)
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId, RunId
from tests.dataplane.relaying.conftest import (
    ANN,
    ATTEMPT,
    BOB,
    CAI,
    EVE,
    STEP,
    edge_key,
    everyone,
    fetch_key,
)

NOW, DAY = 1000.0, 20_000


def asks(key: RelayKey, peer: PeerId = ANN.peer, other: PeerId = BOB.peer) -> RelayRequest:
    return RelayRequest(peer, other, key)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (asks(edge_key()), None),
        (asks(edge_key(), BOB.peer, ANN.peer), None),
        (asks(fetch_key()), None),
        (asks(fetch_key(), ANN.peer, CAI.peer), None),
        (asks(edge_key(run=RunId("b" * 64))), Refused),
        (asks(edge_key(dialler=EVE.peer), EVE.peer), Refused),
        (asks(edge_key(), ANN.peer, EVE.peer), Refused),
        (asks(fetch_key(), ANN.peer, EVE.peer), Refused),
        (asks(edge_key(), ANN.peer, CAI.peer), Refused),
        (asks(edge_key(step=STEP - 1)), Refused),
        (asks(edge_key(attempt=ATTEMPT - 1)), Refused),
        (asks(edge_key(attempt=ATTEMPT + 1)), NotYet),
        (asks(edge_key(step=STEP + 1, attempt=0)), NotYet),
        (asks(edge_key(step=STEP + 2, attempt=0)), Refused),
    ],
)
def test_only_participants_of_the_current_attempt_are_allowed(
    request_: RelayRequest, kind: type[object] | None
) -> None:
    verdict = judge(request_, everyone())
    assert (type(verdict) if verdict is not None else None) is kind


def test_attempt_that_has_not_begun_here_may_begin_soon() -> None:
    view = everyone(participants=())
    assert isinstance(judge(asks(edge_key()), view), NotYet)


def test_edge_is_over_with_its_attempt_and_a_fetch_after_a_while() -> None:
    edge, fetch = asks(edge_key()), asks(fetch_key())
    assert is_over(edge, everyone(), seconds=10 * FETCH_S) == ""
    assert is_over(edge, everyone(attempt=ATTEMPT + 1), seconds=0) == "this attempt is over"
    assert is_over(fetch, everyone(), seconds=FETCH_S - 1) == ""
    assert is_over(fetch, everyone(), seconds=FETCH_S) != ""


@pytest.mark.parametrize(
    ("changes", "is_idle_now", "ends"),
    [
        ({}, False, False),
        ({"attempt": ATTEMPT + 1}, False, True),  # The ends close what is left of a failed attempt.
        ({"step": STEP + 1, "attempt": 0, "participants": ()}, True, False),
        ({"step": STEP + 1, "attempt": 0}, False, False),
        ({"step": STEP + 1, "attempt": 0, "participants": (ANN.peer, CAI.peer)}, True, True),
        ({"step": STEP + 1, "members": {ANN.peer, CAI.peer}, "participants": ()}, True, True),
    ],
)
def test_edge_may_be_kept_for_the_next_reduce_of_both_ends(
    changes: dict[str, object], is_idle_now: bool, ends: bool
) -> None:
    view, request = everyone(**changes), asks(edge_key())
    assert is_idle(request.edge, view) is is_idle_now
    assert (is_over(request, view, seconds=0) != "") is ends
    assert not is_idle(asks(fetch_key()).edge, view)


def test_idle_edge_gives_way_to_another_edge() -> None:
    book, old, new = RelayBook(RelayLimits(edges=2)), asks(edge_key()), asks(edge_key(step=9))
    busy = asks(edge_key(), ANN.peer, CAI.peer)

    def begins(request: RelayRequest) -> Refused | None:
        return book.begin(request.edge, now=NOW, day=DAY, idle=lambda edge: edge == old.edge)

    assert [begins(old), begins(busy)] == [None, None]
    assert not book.is_displaced(old.edge)
    assert begins(new) is None
    assert book.is_displaced(old.edge)
    assert not book.is_displaced(busy.edge)
    assert book.totals(DAY).edges_now == 2
    full = Refused(Refusal.FULL, "this relay is busy with other edges")
    assert begins(asks(edge_key(step=10))) == full
    book.end(old.edge, now=NOW)
    assert not book.is_displaced(old.edge)


def begin(book: RelayBook, key: RelayKey, now: float = NOW) -> Refused | None:
    return book.begin(asks(key).edge, now=now, day=DAY)


def ask(book: RelayBook, key: RelayKey, now: float = NOW, connections: int = 0) -> object:
    return book.ask(asks(key), connections=connections, now=now, day=DAY)


def test_an_edge_counts_once_with_all_its_streams() -> None:
    book = RelayBook(RelayLimits(edges=1))
    assert [begin(book, edge_key(stream)) for stream in range(4)] == [None] * 4
    assert begin(book, edge_key(attempt=9)) == Refused(
        Refusal.FULL, "this relay is busy with other edges"
    )
    edge = asks(edge_key()).edge
    assert [book.end(edge, now=NOW + 2) for _ in range(3)] == [None] * 3
    assert book.end(edge, now=NOW + 2) == EndedEdge(edge, 2.0, 0)
    assert begin(book, fetch_key()) is None


def test_fetches_leave_half_of_the_edges_to_reduces() -> None:
    book = RelayBook(RelayLimits(edges=2))
    assert begin(book, fetch_key(1)) is None
    assert begin(book, fetch_key(2)) == Refused(
        Refusal.FULL, "this relay is busy with other fetches"
    )
    assert begin(book, edge_key()) is None
    assert RelayLimits(edges=1).fetches == 1
    assert RelayLimits(edges=0).fetches == 0


def visitors(request_: RelayRequest, **changes: object) -> type[object] | None:
    """Return the kind of the verdict if Eve is a visitor."""
    verdict = judge(request_, everyone(is_visitor=lambda peer: peer == EVE.peer, **changes))
    return type(verdict) if verdict is not None else None


def test_visitor_may_only_fetch_and_only_from_a_member() -> None:
    by_eve = fetch_key(dialler=EVE)
    assert visitors(asks(by_eve, EVE.peer, ANN.peer)) is None
    assert visitors(asks(by_eve, ANN.peer, EVE.peer)) is None
    assert visitors(asks(fetch_key(), ANN.peer, EVE.peer)) is Refused
    assert visitors(asks(by_eve, EVE.peer, ANN.peer), members={BOB.peer}) is Refused
    assert visitors(asks(edge_key(dialler=EVE.peer), EVE.peer, ANN.peer)) is Refused


def test_fetch_of_a_visitor_ends_earlier() -> None:
    view = everyone(is_visitor=lambda peer: peer == EVE.peer)
    request_ = asks(fetch_key(dialler=EVE), EVE.peer, ANN.peer)
    assert is_over(request_, view, seconds=VISITOR_FETCH_S - 1) == ""
    assert is_over(request_, view, seconds=VISITOR_FETCH_S) != ""
    assert is_over(asks(fetch_key()), view, seconds=VISITOR_FETCH_S) == ""


def test_visitors_leave_half_of_the_fetches_and_bytes_to_members() -> None:
    book = RelayBook(RelayLimits(edges=8, bytes_per_day=1000))
    edges = [asks(fetch_key(number)).edge for number in range(5)]

    def begin_visitors(number: int) -> Refused | None:
        return book.begin(edges[number], now=NOW, day=DAY, is_visitors=True)

    assert [begin_visitors(0), begin_visitors(1)] == [None, None]
    busy = "this relay is busy with other fetches of peers that are not members"
    assert begin_visitors(2) == Refused(Refusal.FULL, busy)
    assert begin(book, fetch_key(3)) is None
    assert book.count(edges[0], EVE.peer, 500, day=DAY)
    assert not book.count(edges[1], EVE.peer, 25, day=DAY)
    book.end(edges[0], now=NOW)
    full = "this relay has used up its bytes of today for peers that are not members"
    asked = book.ask(asks(fetch_key(4)), connections=0, now=NOW, day=DAY, is_visitors=True)
    assert asked == Refused(Refusal.FULL, full)
    assert begin(book, fetch_key(4)) is None
    assert book.begin(edges[0], now=NOW, day=DAY + 1, is_visitors=True) is None
    assert [RelayLimits(edges=each).visitor_fetches for each in (0, 1, 2, 8)] == [0, 1, 1, 2]


def test_refused_edge_stays_refused_for_its_other_end() -> None:
    book = RelayBook(RelayLimits(edges=1))
    begin(book, fetch_key())
    refused = ask(book, edge_key())
    assert isinstance(refused, Refused)
    book.end(asks(fetch_key()).edge, now=NOW)
    assert ask(book, edge_key(), NOW + REFUSED_S / 2) == refused
    assert ask(book, edge_key(), NOW + REFUSED_S) is None


def test_node_that_offers_nothing_refuses_everybody() -> None:
    book = RelayBook(RelayLimits(edges=0))
    assert isinstance(ask(book, edge_key()), Refused)
    assert book.offered(DAY) == 0


def test_too_many_connections_are_refused() -> None:
    book = RelayBook(RelayLimits(connections_max=4))
    assert ask(book, edge_key(), connections=3) is None
    assert isinstance(ask(book, edge_key(), connections=4), Refused)


def test_peer_that_asks_too_often_is_refused() -> None:
    book = RelayBook(RelayLimits())
    assert [ask(book, edge_key()) for _ in range(ASKS_AT_ONCE)] == [None] * ASKS_AT_ONCE
    assert isinstance(ask(book, edge_key()), Refused)
    assert ask(book, edge_key(), NOW + 1) is None


def test_days_bytes_stop_new_edges_and_then_the_others() -> None:
    book, edge = RelayBook(RelayLimits(bytes_per_day=1000)), asks(edge_key()).edge
    begin(book, edge_key())
    assert book.count(edge, ANN.peer, 900, day=DAY)
    assert book.offered(DAY) == 2
    assert book.count(edge, BOB.peer, 100, day=DAY)
    assert book.offered(DAY) == 0
    assert begin(book, fetch_key()) == Refused(
        Refusal.FULL, "this relay has used up its bytes of today"
    )
    assert not book.count(edge, ANN.peer, round(1000 * (OVER_THE_DAY - 1)), day=DAY)
    assert book.offered(DAY + 1) == 2
    totals = book.totals(DAY + 1)
    assert (totals.today_bytes, totals.total_bytes) == (0, 1050)
    assert totals.by_peer == ((ANN.peer, 950), (BOB.peer, 100))
    assert totals.today_by_peer == ()


@pytest.mark.parametrize("limits", [{"edges": -1}, {"edges": 65}, {"bytes_per_day": -1}])
def test_impossible_limits_cannot_be_made(limits: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError):
        RelayLimits(**limits)
