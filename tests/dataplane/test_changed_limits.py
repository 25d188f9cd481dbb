"""The limit of an uplink can be changed, set and removed while threads wait for it."""

from __future__ import annotations

from p2ptrain.dataplane import SendPriority, Uplink
from p2ptrain.dataplane.pacing import Flow, Pacer
from p2ptrain.dataplane.relaying.pace import QUANTUM_BYTES_MAX, Pace


def test_new_rate_holds_for_the_rest_of_a_ticket() -> None:
    pacer = Pacer(100.0, burst_bytes=0)
    ticket = pacer.request_ticket(Flow(SendPriority.RING), 1000, 0.0)
    assert pacer.wait_s(ticket, 4.0) == 6.0
    pacer.set_rate(300.0, 0, 4.0)
    assert pacer.wait_s(ticket, 4.0) == 2.0
    assert pacer.wait_s(ticket, 6.0) == 0.0


def test_limit_applies_at_once_when_it_is_set_or_removed() -> None:
    now = [0.0]
    uplink = Uplink(clock=lambda: now[0])
    share = uplink.share(SendPriority.SWARM)
    assert share.wait_s(share.request_ticket(10**9)) == 0.0
    uplink.set_rate(1000.0)
    waiting = share.request_ticket(10**6)
    assert share.wait_s(waiting) > 900.0
    uplink.set_rate(None)
    assert share.wait_s(waiting) < 0.001
    now[0] += 0.001
    assert share.wait_s(waiting) == 0.0
    assert uplink.asked_bytes == 10**9 + 10**6


def test_relay_follows_the_limit() -> None:
    pace = Pace(Uplink(), None)
    assert (pace.limited, pace.grant()) == (False, (QUANTUM_BYTES_MAX, 0.0))
    pace.set_limit(80_000.0)
    assert pace.limited
    granted, wait_s = pace.grant()
    assert granted < QUANTUM_BYTES_MAX
    assert wait_s >= 0.0
