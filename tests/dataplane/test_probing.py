"""A probe measures the rate of a path, and its bytes, duration and frequency are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest

from p2ptrain.dataplane import ProbeResult, ProbeServer, SecureSocket, plain_pair, probe
from p2ptrain.dataplane.probing import PROBE_BYTES_MAX, SLICE_BYTES, measured
from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError, PeerError, RemoteProtocolError
from p2ptrain.identity import Identity

ANN, BOB = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2))


patient = partial(probe, probe_s=60.0)
"""`probe` with a long time limit, so that it does not end early on a busy machine."""


Server = Callable[[SecureSocket, Mapping[str, object]], None]


@contextmanager
def served(server: Server, faults: list[P2PTrainError] | None = None) -> Iterator[SecureSocket]:
    """Yield our end of a connection that `server` serves. Put its errors into `faults`."""
    ours, theirs = plain_pair(ANN, BOB)

    def serve() -> None:
        try:
            server(theirs, {"purpose": "probe"})
        except (PeerError, RemoteProtocolError) as exc:
            if faults is not None:
                faults.append(exc)
        theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield ours
    ours.close()
    thread.join()


def never() -> bool:
    return False


def counted(limited: list[int]) -> Callable[[int], None]:
    return limited.append


def test_probe_counts_about_half_of_the_bytes_and_obeys_the_rate_limit() -> None:
    limited: list[int] = []
    with served(ProbeServer(never, counted(limited), probe_s=60.0)) as sock:
        found = patient(sock)
    assert sum(limited) == PROBE_BYTES_MAX
    assert max(limited) == SLICE_BYTES
    assert PROBE_BYTES_MAX / 2 <= found.count_bytes <= PROBE_BYTES_MAX
    assert found.seconds > 0
    assert found.round_trip_s > 0


def test_busy_node_and_too_frequent_requests_get_no_probe() -> None:
    busy = ProbeServer(lambda: True)
    with served(busy) as sock:
        assert patient(sock).count_bytes == 0
    idle = ProbeServer(never, probe_s=60.0)
    with served(idle) as sock:
        assert patient(sock, 1000).count_bytes == 1000
    with served(idle) as sock:
        assert patient(sock, 1000).count_bytes == 0


def test_interrupted_probe_counts_the_bytes_that_arrived() -> None:
    answers = iter([False, False, False, False, True])
    with served(ProbeServer(lambda: next(answers), probe_s=60.0)) as sock:
        found = patient(sock)
    assert 0 < found.count_bytes <= 3 * SLICE_BYTES


@pytest.mark.parametrize("count_bytes", [0, -1, PROBE_BYTES_MAX + 1])
def test_request_for_too_many_or_zero_bytes_is_refused(count_bytes: int) -> None:
    ours, theirs = plain_pair(ANN, BOB)
    ours.send_frame(pack({"bytes": count_bytes}))
    with pytest.raises(RemoteProtocolError, match="zero bytes or too many"):
        ProbeServer(never, probe_s=60.0)(theirs, {})
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("came", "found"),
    [
        ([(1.0, 0)], ProbeResult(0.5, 0, 1e-6)),
        ([(1.0, 0), (2.0, 10)], ProbeResult(0.5, 10, 1.0)),
        ([(1.0, 0), (2.0, 10), (3.0, 20), (4.0, 30), (5.0, 40)], ProbeResult(0.5, 20, 2.0)),
        # TCP started slowly: little had arrived after half of the time.
        ([(1.0, 0), (3.0, 1), (4.0, 21), (5.0, 41)], ProbeResult(0.5, 40, 2.0)),
        # A token bucket on the path was full at first, so most bytes arrived at once.
        ([(1.0, 0), (1.1, 30), (2.0, 35), (3.0, 40)], ProbeResult(0.5, 40, 2.0)),
    ],
)
def test_first_half_of_a_probe_is_not_counted(
    came: list[tuple[float, int]], found: ProbeResult
) -> None:
    assert measured(0.5, came) == found
