"""A step report travels in a heartbeat. Older versions skip it; malformed reports are refused."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.node.control.series.own_report import report_of, row_of
from p2ptrain.observe.series.rows import PeerStepRow
from p2ptrain.observe.series.step_activity import StepFacts
from p2ptrain.peers.heartbeat import ADDRESSES_MAX, HEARTBEAT_BYTES_MAX, decode, encode
from p2ptrain.peers.heartbeat_delta import HeartbeatSender
from p2ptrain.peers.series.step_report import (
    PREFIX,
    StepReport,
    decode_report,
    encode_report,
    without_report,
)
from tests.node.test_heartbeat import FULL

REPORT = StepReport(
    step=435,
    train_ms=28_000,
    data_wait_ms=12,
    wait_ms=1500,
    exchange_ms=1900,
    fetch_ms=0,
    apply_ms=80,
    bytes_up=48_000_000_000,
    bytes_down=47_000_000_000,
    loss=2.375,
    gradient_norm=0.5,
    cosine=-0.25,
    quantisation_error=0.0078125,
    mfu=None,
    device="cuda",
    version="0.1.0",
)
LARGEST = StepReport(
    *((1 << 32) - 1,) * 7,
    *(1 << 53,) * 2,
    *(1000.0, 1e12, 1.0, 1e6, 2.0),
    "other",
    "9" * 15,
)
UNKNOWN = StepReport(step=1)


@pytest.mark.parametrize("report", [REPORT, LARGEST, UNKNOWN])
def test_heartbeat_carries_a_report_of_at_most_80_bytes(report: StepReport) -> None:
    told = replace(FULL, step_report=report)
    back = decode(encode(told))
    assert back == replace(told, step_report=decode_report(encode_report(report)))
    assert back.step_report is not None
    assert replace(back.step_report, gradient_norm=None) == replace(report, gradient_norm=None)
    assert back.addresses == FULL.addresses
    text = encode_report(report).removeprefix(PREFIX)
    assert len(base64.urlsafe_b64decode(text)) <= 80


def test_older_versions_see_one_more_address_that_they_cannot_read() -> None:
    wire, before = (
        unpack(encode(each), bytes_max=HEARTBEAT_BYTES_MAX)
        for each in (replace(FULL, step_report=LARGEST, relays=3), FULL)
    )
    assert isinstance(wire, dict)
    assert isinstance(before, dict)
    assert wire.keys() == before.keys()
    assert wire["addresses"] == [
        *FULL.addresses,
        "/p2ptrain-relays/3",
        encode_report(LARGEST),
    ]
    assert all(len(each) <= 200 and each.isprintable() for each in wire["addresses"])


def test_report_leaves_room_for_the_other_addresses() -> None:
    many = tuple(f"/ip4/127.0.0.1/tcp/{4001 + each}" for each in range(ADDRESSES_MAX))
    back = decode(encode(replace(FULL, addresses=many, relays=2, step_report=REPORT)))
    assert (back.addresses, back.relays, back.step_report is not None) == (many[:6], 2, True)


def test_new_report_costs_one_full_heartbeat() -> None:
    sender = HeartbeatSender()
    sizes = []
    for serial in range(12):
        report = None if serial < 8 else REPORT
        beat = replace(FULL, serial=serial, endpoint=b"x" * 500, step_report=report)
        sizes.append(len(sender.encode_next(beat)))
    assert [size > 500 for size in sizes[5:]] == [False, False, False, True, False, False, False]


def text_of(*numbers: object, device: int = 1, version: bytes = b"1") -> str:
    usual = [1, *(0,) * 6, 0, 0, *(1.0,) * 5]
    usual[: len(numbers)] = numbers  # type: ignore[assignment]
    data = struct.pack("<I6I2Q5fB", *usual, device) + version
    return PREFIX + base64.urlsafe_b64encode(data).decode()


@pytest.mark.parametrize(
    "text",
    [
        PREFIX,
        f"{PREFIX}AAAA",
        f"{PREFIX}*not base64*",
        text_of()[:-1],
        text_of() + "\n",
        text_of(device=7),
        text_of(version=b"x" * 16),
        text_of(version=b"\x1b[2J"),
        text_of(version=b"\xff"),
        text_of(1, *(0,) * 6, 1 << 60),
        text_of(1, *(0,) * 8, 1e9),
        text_of(1, *(0,) * 8, -1.0),
        text_of(1, *(0,) * 8, float("inf")),
        text_of(1, *(0,) * 8, 2.0, 1e30),
        text_of(1, *(0,) * 8, 2.0, 1.0, 2.0),
        text_of(1, *(0,) * 8, 2.0, 1.0, 0.0, 0.0, 50.0),
    ],
)
def test_malformed_or_absurd_report_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_report(text)


def test_heartbeat_with_a_malformed_report_is_refused() -> None:
    wire = unpack(encode(FULL), bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(wire, dict)
    for texts in ([f"{PREFIX}AAAA"], [encode_report(REPORT), encode_report(UNKNOWN)]):
        with pytest.raises(RemoteProtocolError):
            decode(pack(wire | {"addresses": texts}))


def test_report_of_a_later_form_is_skipped() -> None:
    kept, report = without_report(("/ip4/127.0.0.1/tcp/1", "/p2ptrain-step/2/anything"))
    assert (kept, report) == (("/ip4/127.0.0.1/tcp/1",), None)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_report_or_are_refused(data: bytes) -> None:
    text = PREFIX + base64.urlsafe_b64encode(data).decode()
    try:
        report = decode_report(text)
    except RemoteProtocolError:
        return
    assert report is not None
    assert encode_report(report) == text


@given(st.text(max_size=150))
def test_any_text_is_a_report_or_is_refused(text: str) -> None:
    try:
        decode_report(PREFIX + text)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("change", [{"train_ms": -1}, {"loss": float("nan")}, {"device": "abacus"}])
def test_own_report_out_of_bounds_cannot_exist(change: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        replace(REPORT, **change)  # type: ignore[arg-type]


def test_own_values_that_others_would_refuse_are_left_out() -> None:
    facts = StepFacts(
        step=3,
        skipped=False,
        train_ms=1 << 40,
        data_wait_ms=1,
        wait_ms=2,
        exchange_ms=3,
        fetch_ms=4,
        apply_ms=5,
        bytes_up=1 << 60,
        bytes_down=7,
        loss=1e9,
        gradient_norm=2.0,
        mfu=None,
        learning_rate=1e-3,
        cosine=0.5,
        quantisation_error=0.25,
        device="abacus",
        paths={},
    )
    report = report_of(facts)
    assert (report.train_ms, report.bytes_up, report.loss, report.device) == (
        (1 << 32) - 1,
        1 << 53,
        None,
        "other",
    )
    row = row_of("p", report)
    assert row == PeerStepRow(
        3,
        "p",
        train_ms=(1 << 32) - 1,
        data_wait_ms=1,
        wait_ms=2,
        exchange_ms=3,
        fetch_ms=4,
        apply_ms=5,
        bytes_up=1 << 53,
        bytes_down=7,
        gradient_norm=2.0,
        cosine=0.5,
        quantisation_error=0.25,
        device="other",
        version=report.version,
    )
