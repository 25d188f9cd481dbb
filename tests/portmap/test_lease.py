"""A lease keeps ports open: stories of a router, told in virtual time."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.portmap.lease import (
    LIFETIME_MIN_S,
    LIFETIME_S,
    MappingLease,
    OpenPort,
    Standing,
)
from p2ptrain.portmap.values import (
    Checked,
    CheckRequest,
    Granted,
    MapRequest,
    Protocol,
    Refusal,
    Refused,
    Reply,
    Request,
    Silent,
    UnmapRequest,
)

PCP, NAT_PMP, UPNP = Protocol
CONTROL, DATA = 4201, 4202
NONCES = {CONTROL: b"c" * 12, DATA: b"d" * 12}
OUTSIDE, ELSEWHERE = IPv4Address("203.0.113.7"), IPv4Address("203.0.113.8")
SILENT = Silent("it does not answer")
UNSUPPORTED = Refused(Refusal.UNSUPPORTED, "it does not have it")
DENIED = Refused(Refusal.DENIED, "its settings do not allow this")
FULL = Refused(Refusal.TEMPORARY, "it has no room for more open ports")


class Story:
    """A lease from time 0 on, and the requests that it has made, with their times."""

    def __init__(self, protocols: tuple[Protocol, ...] = tuple(Protocol)) -> None:
        self.lease = MappingLease(NONCES, 0.0, protocols)
        self.now = 0.0
        self.asked: list[tuple[float, str, Protocol, int]] = []

    def ask(self) -> Request:
        """Go to the next deadline, and return the request that is due then."""
        deadline = self.lease.next_deadline()
        assert deadline is not None
        assert self.lease.next_request(deadline - 0.01) is None or deadline <= self.now
        self.now = max(self.now, deadline)
        request = self.lease.next_request(self.now)
        assert request is not None
        kind = "check" if isinstance(request, CheckRequest) else "map"
        port = request.internal_port if isinstance(request, MapRequest) else 0
        self.asked.append((self.now, kind, request.protocol, port))
        return request

    def answer(self, *replies: Reply) -> None:
        """Answer the next requests with these replies."""
        for reply in replies:
            self.lease.handle(self.ask(), reply, self.now)

    def open_both(self) -> None:
        """The router opens both ports by PCP at time 0; its clock shows 1000 s."""
        self.answer(self.granted(CONTROL), self.granted(DATA))
        self.asked.clear()

    def granted(self, port: int, **changes: object) -> Granted:
        usual = {"address": OUTSIDE, "port": port, "lifetime_s": 3600, "uptime_s": self.uptime_s()}
        return Granted(**{**usual, **changes})  # type: ignore[arg-type]

    def uptime_s(self) -> int:
        """The clock of a router that has not restarted, at the next request."""
        deadline = self.lease.next_deadline()
        assert deadline is not None
        return 1000 + int(max(self.now, deadline))

    def open_ports(self) -> list[int]:
        return [each.internal_port for each in self.lease.standing.open_ports]


def test_both_ports_are_opened_and_renewed_at_half_of_the_lifetime() -> None:
    story = Story()
    story.answer(story.granted(CONTROL), story.granted(DATA))
    assert story.lease.standing == Standing(
        (CONTROL, DATA),
        (
            OpenPort(CONTROL, OUTSIDE, CONTROL, PCP, 1800.0),
            OpenPort(DATA, OUTSIDE, DATA, PCP, 1800.0),
        ),
    )
    while story.now < 1800:
        request = story.ask()
        usual = Checked(uptime_s=1000 + int(story.now))
        port = getattr(request, "internal_port", 0)
        reply = story.granted(port) if port else usual
        story.lease.handle(request, reply, story.now)
    checks = [(60.0 * count, "check", PCP, 0) for count in range(1, 30)]
    assert story.asked == [
        (0.0, "map", PCP, CONTROL),
        (0.0, "map", PCP, DATA),
        *checks,
        (1800.0, "map", PCP, CONTROL),
    ]


def test_renewal_asks_for_the_same_external_port_with_the_same_nonce() -> None:
    story = Story((PCP,))
    story.answer(story.granted(50_001), story.granted(50_002))
    for _ in range(29):
        story.answer(Checked(uptime_s=story.uptime_s()))
    assert story.ask() == MapRequest(PCP, CONTROL, 50_001, LIFETIME_S, NONCES[CONTROL])


def test_protocols_are_tried_in_order_until_one_opens_the_port() -> None:
    story = Story()
    story.answer(SILENT, UNSUPPORTED, story.granted(CONTROL, uptime_s=None), FULL)
    assert story.asked == [
        (0.0, "map", PCP, CONTROL),
        (0.0, "map", NAT_PMP, CONTROL),
        (0.0, "map", UPNP, CONTROL),
        (0.0, "map", UPNP, DATA),
    ]
    assert story.lease.standing == Standing(
        (CONTROL, DATA),
        (OpenPort(CONTROL, OUTSIDE, CONTROL, UPNP, 1800.0),),
        "UPnP: it has no room for more open ports",
    )


def test_silent_router_is_asked_again_after_pauses_that_double() -> None:
    story = Story()
    for _ in range(10):
        story.answer(SILENT, SILENT, SILENT)
    times = [at for at, _, protocol, _ in story.asked if protocol is PCP]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert story.lease.standing.reason == (
        "PCP: it does not answer; NAT-PMP: it does not answer; UPnP: it does not answer"
    )


def test_result_is_open_until_each_port_has_its_reply() -> None:
    story = Story()
    for reply in (SILENT, UNSUPPORTED, story.granted(CONTROL), FULL):
        assert story.lease.standing.asking
        story.answer(reply)
    assert not story.lease.standing.asking


def test_lease_gives_up_on_a_router_that_has_none_of_the_protocols() -> None:
    story = Story()
    story.answer(UNSUPPORTED, UNSUPPORTED, UNSUPPORTED)
    assert story.lease.next_deadline() is None
    assert story.lease.next_request(1e9) is None
    assert story.lease.removals() == ()


def test_unsupported_protocol_is_not_tried_again_but_a_denied_one_is() -> None:
    story = Story()
    story.answer(UNSUPPORTED, DENIED, UNSUPPORTED, DENIED, DENIED)
    assert [(at, protocol) for at, _, protocol, _ in story.asked] == [
        (0.0, PCP),
        (0.0, NAT_PMP),
        (0.0, UPNP),
        (60.0, NAT_PMP),
        (180.0, NAT_PMP),
    ]


def test_restarted_router_is_asked_for_all_ports_at_once() -> None:
    story = Story()
    story.open_both()
    story.answer(Checked(uptime_s=1060), Checked(uptime_s=30))
    assert story.open_ports() == [CONTROL, DATA]
    story.answer(story.granted(CONTROL, uptime_s=30), story.granted(DATA, uptime_s=30))
    assert story.asked[2:] == [(120.0, "map", PCP, CONTROL), (120.0, "map", PCP, DATA)]
    assert story.lease.next_deadline() == 180.0


def test_restart_that_shows_in_a_renewal_renews_the_other_port_too() -> None:
    story = Story()
    story.open_both()
    for _ in range(29):
        story.answer(SILENT)
    story.answer(story.granted(CONTROL, uptime_s=9), story.granted(DATA, uptime_s=9))
    assert story.asked[29:] == [(1800.0, "map", PCP, CONTROL), (1800.0, "map", PCP, DATA)]


def test_new_external_address_is_noticed_and_taken_over() -> None:
    story = Story((NAT_PMP,))
    story.open_both()
    story.answer(Checked(ELSEWHERE, uptime_s=1060))
    story.answer(story.granted(CONTROL, address=ELSEWHERE), story.granted(DATA, address=ELSEWHERE))
    assert [at for at, *_ in story.asked] == [60.0, 60.0, 60.0]
    assert {each.address for each in story.lease.standing.open_ports} == {ELSEWHERE}


def test_missing_mapping_is_requested_again_at_once() -> None:
    story = Story((UPNP,))
    story.answer(story.granted(CONTROL, uptime_s=None), story.granted(DATA, uptime_s=None))
    story.answer(Checked(OUTSIDE, mapped=False), DENIED)
    assert story.asked[2:] == [(600.0, "check", UPNP, 0), (600.0, "map", UPNP, CONTROL)]
    assert story.open_ports() == [DATA]


def test_failed_renewals_are_repeated_until_the_lifetime_ends() -> None:
    story = Story((PCP,))
    story.answer(story.granted(CONTROL, lifetime_s=240), story.granted(DATA, lifetime_s=240))
    story.asked.clear()
    while story.open_ports():
        story.answer(SILENT)
    renewals = [at for at, _, _, port in story.asked if port == CONTROL]
    assert renewals == [120.0, 124.0, 132.0, 148.0, 180.0, 240.0]
    gone = Standing((CONTROL, DATA), (), "PCP: it does not answer", asking=True)
    assert story.lease.standing == gone
    assert story.lease.next_deadline() == 240.0


def test_router_that_forbids_a_renewal_has_closed_the_port() -> None:
    story = Story()
    story.open_both()
    for _ in range(29):
        story.answer(SILENT)
    story.answer(DENIED)
    assert story.open_ports() == [DATA]
    story.answer(DENIED)
    assert story.open_ports() == []
    assert story.ask() == MapRequest(PCP, CONTROL, CONTROL, LIFETIME_S, NONCES[CONTROL])


@pytest.mark.parametrize("lifetime_s", [0, 1, LIFETIME_MIN_S - 1])
def test_very_short_lifetime_counts_as_a_refusal(lifetime_s: int) -> None:
    story = Story((PCP,))
    story.answer(story.granted(CONTROL, lifetime_s=lifetime_s))
    words = f"PCP: it opens ports for {lifetime_s} s only"
    assert story.lease.standing == Standing((CONTROL, DATA), (), words)
    assert story.lease.next_deadline() == 60.0


def test_huge_lifetime_is_renewed_after_half_an_hour() -> None:
    story = Story((PCP,))
    forever = 2**32 - 1
    story.answer(story.granted(CONTROL, lifetime_s=forever))
    assert story.lease.standing.open_ports[0].renewed_every_s == 1800.0


def test_router_without_a_public_address_is_recognised() -> None:
    story = Story((NAT_PMP,))
    story.answer(Refused(Refusal.NO_ADDRESS, "it has no public address"))
    assert story.lease.standing.no_address


def test_open_ports_are_closed_at_the_end_with_their_nonces() -> None:
    story = Story()
    story.answer(story.granted(50_001), story.granted(DATA))
    assert story.lease.removals() == (
        UnmapRequest(PCP, CONTROL, 50_001, NONCES[CONTROL]),
        UnmapRequest(PCP, DATA, DATA, NONCES[DATA]),
    )


MINUTES = 8

REPLIES = st.one_of(
    st.just(SILENT),
    st.sampled_from(Refusal).map(lambda kind: Refused(kind, "no")),
    st.builds(
        Granted,
        st.sampled_from([OUTSIDE, ELSEWHERE]),
        st.integers(1, 65_535),
        st.sampled_from([0, 1, 120, 3600, 2**32 - 1]),
        st.sampled_from([0, 10**6, 2**32 - 1]),
    ),
)
CHECKS = st.one_of(
    st.just(SILENT),
    st.builds(
        Checked,
        st.sampled_from([None, OUTSIDE, ELSEWHERE]),
        st.sampled_from([None, 0, 10**6]),
        st.booleans(),
    ),
)


@given(st.data())
def test_no_router_makes_a_lease_ask_often(data: st.DataObject) -> None:
    """The router is asked at most ten times a minute, and may reply anything."""
    lease, now, asked = MappingLease(NONCES, 0.0, tuple(Protocol)), 0.0, 0
    while (deadline := lease.next_deadline()) is not None and deadline < MINUTES * 60:
        now = max(now, deadline)
        request = lease.next_request(now)
        assert request is not None
        asked += 1
        replies = CHECKS if isinstance(request, CheckRequest) else REPLIES
        lease.handle(request, data.draw(replies), now)
        standing = lease.standing
        assert bool(standing.reason) == bool(standing.closed)
        assert {each.protocol for each in standing.open_ports} <= {
            each.protocol for each in lease.removals()
        }
        assert asked <= 10 * MINUTES


def test_router_that_pretends_to_restart_with_each_answer_is_asked_once_a_minute() -> None:
    story = Story((PCP,))
    story.open_both()
    for count in range(20):
        request = story.ask()
        shown = 10**6 * (count % 2)
        opened = story.granted(CONTROL, uptime_s=shown)
        is_check = isinstance(request, CheckRequest)
        story.lease.handle(request, Checked(uptime_s=shown) if is_check else opened, story.now)
    times = [at for at, _, _, port in story.asked if port == DATA]
    assert len(times) > 4
    assert min(later - earlier for earlier, later in pairwise(times)) >= 60
