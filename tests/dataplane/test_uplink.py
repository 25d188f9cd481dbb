"""An uplink divides its rate limit among threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from p2ptrain.dataplane import PeerShares, SendPriority, Uplink
from p2ptrain.errors import LocalProtocolError
from p2ptrain.ids import PeerId

from .conftest import DEADLINE_S


def test_ticket_waits_until_the_rate_limit_allows_the_bytes() -> None:
    times = iter([10.0, 10.0, 10.0, 12.0])
    share = Uplink(1000, burst_bytes=0, clock=lambda: next(times)).share(SendPriority.SWARM)
    ticket = share.request_ticket(2000)
    assert [share.wait_s(ticket), share.wait_s(ticket)] == pytest.approx([2.0, 2.0])
    assert share.wait_s(ticket) == 0.0


def test_closing_an_uplink_releases_its_waiting_threads() -> None:
    """Otherwise a node that stops could wait for minutes until the limit allows more bytes."""
    uplink = Uplink(1000)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(uplink.share(rank).wait_to_send, 10**9) for rank in SendPriority]
        uplink.close()
        assert [each.result(DEADLINE_S) for each in waiting] == [None, None]
    uplink.share(SendPriority.RING).wait_to_send(10**9)


def test_uplink_without_a_valid_rate_is_refused() -> None:
    for rate in (0, -1.0, float("nan")):
        with pytest.raises(LocalProtocolError):
            Uplink(rate)


@dataclass
class PaperUplink:
    """A fake uplink that records the shares that it creates."""

    shares: list[PaperShare] = field(default_factory=list)

    def share(self, rank: SendPriority) -> PaperShare:
        self.shares.append(PaperShare(rank))
        return self.shares[-1]


@dataclass
class PaperShare:
    rank: SendPriority
    taken: list[int] = field(default_factory=list)

    def wait_to_send(self, count: int) -> None:
        self.taken.append(count)


def test_peer_has_one_share_for_all_its_connections() -> None:
    """Two shares are kept. When "late" arrives, the share that was idle longest is dropped, that of
    "modest", so "modest" gets a new share later."""
    paper = PaperUplink()
    shares = PeerShares(paper, SendPriority.SWARM, peers_max=2)  # type: ignore[arg-type]
    for peer, count in (("greedy", 1), ("modest", 2), ("greedy", 4), ("late", 8), ("modest", 16)):
        shares.wait_to_send(PeerId(peer), count)
    assert [(share.rank, share.taken) for share in paper.shares] == [
        (SendPriority.SWARM, [1, 4]),
        (SendPriority.SWARM, [2]),
        (SendPriority.SWARM, [8]),
        (SendPriority.SWARM, [16]),
    ]


def test_fast_uplink_allows_a_burst_that_makes_up_for_late_wake_ups() -> None:
    share = Uplink(100_000_000, clock=lambda: 10.0).share(SendPriority.RING)
    assert share.wait_s(share.request_ticket(1_000_000)) == 0.0
    assert share.wait_s(share.request_ticket(1_000_000)) == pytest.approx(0.01)
