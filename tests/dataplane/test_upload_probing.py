"""An upload probe measures what arrives at the peer; its bytes, duration and frequency are
bounded.
"""

from __future__ import annotations

import threading

import pytest

from p2ptrain.dataplane import UploadProbeServer, plain_pair, probe_upload
from p2ptrain.dataplane.probing import PROBE_BYTES_MAX, SLICE_BYTES
from p2ptrain.encoding import pack
from p2ptrain.errors import P2PTrainError, PeerError, RemoteProtocolError
from tests.dataplane.test_probing import ANN, BOB, never, served

PATIENT_S = 60.0


def test_peer_counts_about_half_of_the_bytes() -> None:
    with served(UploadProbeServer(never, PATIENT_S)) as sock:
        found = probe_upload(sock, probe_s=PATIENT_S)
    assert PROBE_BYTES_MAX / 2 <= found.count_bytes <= PROBE_BYTES_MAX
    assert found.seconds > 0
    assert found.round_trip_s > 0


def test_busy_peer_and_too_frequent_requests_get_no_probe() -> None:
    with served(UploadProbeServer(lambda: True)) as sock:
        assert probe_upload(sock).count_bytes == 0
    idle = UploadProbeServer(never, PATIENT_S)
    with served(idle) as sock:
        assert probe_upload(sock, 1000, PATIENT_S).count_bytes == 1000
    with served(idle) as sock:
        assert probe_upload(sock, 1000, PATIENT_S).count_bytes == 0


@pytest.mark.parametrize("offered", [0, -1, PROBE_BYTES_MAX + 1])
def test_offer_of_too_many_bytes_is_refused(offered: int) -> None:
    faults: list[P2PTrainError] = []
    with served(UploadProbeServer(never), faults) as sock:
        sock.set_deadline(PATIENT_S)
        sock.send_frame(pack({"bytes": offered}))
        with pytest.raises(PeerError):
            sock.receive_into(bytearray(1))
    assert [type(each) for each in faults] == [RemoteProtocolError]


def test_peer_that_sends_more_than_it_offered_is_cut_off() -> None:
    faults: list[P2PTrainError] = []
    with served(UploadProbeServer(never, PATIENT_S), faults) as sock:
        sock.set_deadline(PATIENT_S)
        sock.send_frame(pack({"bytes": 10}))
        sock.receive_into(bytearray(1))
        sock.send_frame(bytes(11))
        with pytest.raises(PeerError):
            sock.receive_frame(100)
    assert [each.what for each in faults] == ["a probe sends more than it offered"]


@pytest.mark.parametrize(
    "reply",
    [{"bytes": 11, "microseconds": 1}, {"bytes": -1, "microseconds": 1}, {"bytes": 5}],
    ids=["too many", "negative", "no time"],
)
def test_impossible_report_of_a_peer_is_refused(reply: dict[str, int]) -> None:
    ours, theirs = plain_pair(ANN, BOB)

    def lie() -> None:
        theirs.set_deadline(PATIENT_S)
        theirs.receive_frame()
        theirs.send_all(b"\1")
        while theirs.receive_frame(SLICE_BYTES):
            pass
        theirs.send_frame(pack(reply))

    liar = threading.Thread(target=lie)
    liar.start()
    with pytest.raises(RemoteProtocolError):
        probe_upload(ours, 10, PATIENT_S)
    liar.join()
    ours.close()
    theirs.close()
