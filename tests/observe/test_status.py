"""The status is sent as JSON and shown as sentences."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.frames import Progress
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.status import MemberStatus, NodeStatus, status_lines
from p2ptrain.state.pseudo_gradient import Comparison

STATUS = NodeStatus(
    peer="12D3KooWExampleAbCdEf",
    peer_name="brave-otter",
    state="training (inner 37/100)",
    state_name="training",
    run="ab" * 32,
    run_name="demo",
    outer_step=4,
    outer_steps=16,
    ledger_height=9,
    ledger_head="cd" * 32,
    tokens=1_200_000,
    tokens_total=11_400_000,
    tokens_per_s=9012.3,
    loss=3.25,
    validation_loss=3.5,
    data_wait_s=0.00316,
    learning_rate=4e-4,
    gradient_norm=1.2096,
    mfu=0.412,
    compute_utilisation=0.909,
    learning={"norm": 3.1415, "mean_norm": 2.2, "cosine": 0.618, "quantisation_error": 0.0083},
    waits_for="members are still training: calm-fox",
    members=(
        MemberStatus(
            "12D3KooWOtherGhIjKl",
            "calm-fox",
            "voter",
            "yellow",
            "training",
            heard_s_ago=7,
            rtt_ms=41.6,
        ),
    ),
    congestion_control="cubic",
    congestion_refusal="No such file or directory",
    limit_up_bytes_per_s=1_000_000,
    sending="congestion control cubic; bbr is not available: No such file or directory",
    exchanged="the last took 1.50 s",
    uptime_s=75,
    warnings=("the journal lost 3 lines",),
    cautions=(Caution("LOG", "the journal lost 3 lines"),),
)


def test_status_is_equal_after_encoding_and_decoding() -> None:
    assert NodeStatus.from_json(json.loads(json.dumps(STATUS.to_json()))) == STATUS


def test_node_without_a_run_has_a_status_too() -> None:
    status = NodeStatus("12D3KooWExampleAbCdEf", "brave-otter", "connecting", "connecting")
    assert NodeStatus.from_json(status.to_json()) == status
    assert status_lines(status) == ["brave-otter (…AbCdEf): connecting", "uptime    0 s"]


def test_unknown_fields_from_a_newer_node_are_ignored() -> None:
    value = {**STATUS.to_json(), "mood": "good"}
    assert NodeStatus.from_json(value) == STATUS


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**STATUS.to_json(), "schema": 2},
        {"schema": 1, "peer": "x"},
        {**STATUS.to_json(), "members": [3]},
        {**STATUS.to_json(), "members": 3},
        {**STATUS.to_json(), "members": [{"peer": "x"}]},
        {**STATUS.to_json(), "cautions": ["once a string"]},
    ],
)
def test_malformed_status_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        NodeStatus.from_json(value)


def test_complete_status_is_shown_as_readable_text() -> None:
    assert status_lines(STATUS) == [
        "brave-otter (…AbCdEf): training (inner 37/100)",
        "run       demo (abababababab…)",
        "progress  outer step 4 of 16, validation loss 3.500",
        "tokens    1.2 M of 11.4 M accepted",
        "ledger    height 9, head cdcdcdcdcdcd…",
        "inner     loss 3.250, 9,012 tokens/s, 41% of the device's peak (MFU), waited 3.2 ms "
        "for data, learning rate 0.0004, gradient norm 1.21",
        "outer     length of own change 3.14, cosine 0.62 to the mean of all, quantisation "
        "error 0.83%, computing 91% of the time",
        "next      members are still training: calm-fox",
        "sending   congestion control cubic; bbr is not available: No such file or directory",
        "exchange  the last took 1.50 s",
        "warning   the journal lost 3 lines",
        "  yellow  calm-fox (…GhIjKl)           voter    training, heard 7 s ago, RTT 42 ms",
        "uptime    75 s",
    ]


def test_unknown_training_figures_are_left_out() -> None:
    on_cpu = dataclasses.replace(STATUS, mfu=None, learning={})
    lines = status_lines(on_cpu)
    (inner,) = [line for line in lines if line.startswith("inner")]
    assert inner.startswith("inner     loss 3.250, 9,012 tokens/s, waited 3.2 ms for data, ")
    assert "outer     computing 91% of the time" in lines
    left_out = dataclasses.replace(on_cpu, compute_utilisation=None)
    assert not any(line.startswith("outer") for line in status_lines(left_out))


def test_small_token_counts_are_shown_exactly() -> None:
    few = dataclasses.replace(STATUS, tokens=512, tokens_total=99_999)
    assert "tokens    512 of 99999 accepted" in status_lines(few)


def test_metrics_page_names_existing_fields() -> None:
    """docs/metrics.md has a row for each field that measures training."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [line.split("|")[3] for line in page.splitlines() if line.startswith("| ")]
    named = {name for cell in rows for name in re.findall(r"`([\w.]+)`", cell)}
    learnt = {f"learning.{item.name}" for item in dataclasses.fields(Comparison)}
    assert named - learnt <= STATUS.to_json().keys()
    told = {item.name for item in dataclasses.fields(Progress)} & STATUS.to_json().keys()
    assert named >= learnt | (told - {"tokens", "inner_step"}) | {"compute_utilisation"}
