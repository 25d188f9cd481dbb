"""The benchmarks of joins, snapshots and replays measure real work, and print lines that follow the
schema."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from p2ptrain.bench.disturbance import MemberTimes, lines
from p2ptrain.bench.joining import Chunks, JoinSetting, join, make_blob, serve
from p2ptrain.cli.main import main
from p2ptrain.store import StoreReader


def measures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, float]:
    assert main(["bench", *words, "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["schema"] for each in told} == {1}
    return {f"{each['measure']} {each['unit']}": each["value"] for each in told}


@pytest.mark.parametrize("encrypted", [True, False])
def test_join_is_complete_and_names_its_sources(tmp_path: Path, encrypted: bool) -> None:
    setting = JoinSetting(peers=3, bytes=20 * 2**20, encrypted=encrypted, garbage=1)
    digest = make_blob(tmp_path, setting.bytes)
    servers = [
        threading.Thread(target=serve, args=(setting, number, "127.0.0.1", tmp_path))
        for number in (1, 2, 3)
    ]
    for server in servers:
        server.start()
    measured = join(setting, "127.0.0.1", tmp_path, digest)
    for server in servers:
        server.join(100)
        assert not server.is_alive()
    joined = StoreReader(tmp_path / "joined")
    assert joined.read_blob(digest) == StoreReader(tmp_path / "store").read_blob(digest)
    assert measured.bytes == sum(measured.bytes_by_peer.values()) > setting.bytes
    assert set(measured.bytes_by_peer) <= {"2", "3"}
    assert measured.dropped in ((), ("1 sent a chunk that does not match its digest",))
    assert measured.seconds > 0


def test_dying_source_stops_after_half_of_an_equal_share(tmp_path: Path) -> None:
    setting = JoinSetting(peers=2, bytes=24 * 2**20, dying=1)
    digest = make_blob(tmp_path, setting.bytes)
    died = list[int]()
    chunks = Chunks(setting, 1, tmp_path, died.append)
    served = 0
    for chunk in StoreReader(tmp_path / "store").manifest(digest).chunks:
        chunks.get_chunk(chunk)
        served += not died
    assert (served, died[:1]) == (1, [0])


def test_at_least_one_source_must_stay_honest_and_alive() -> None:
    with pytest.raises(ValueError, match="at least one"):
        JoinSetting(peers=2, bytes=1, garbage=1, dying=1)


@pytest.mark.parametrize(
    "words", [["--encryption", "rot13"], ["--peers", "2", "--garbage", "2"], ["--dying", "4"]]
)
def test_impossible_measurement_is_reported(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "join", *words]) == 2
    assert "the measurement cannot run" in capsys.readouterr().err


def test_snapshot_is_compared_with_dd_while_updates_continue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = measures(
        capsys, "snapshot", "--megabytes", "8", "--rounds", "1", "--folder", str(tmp_path)
    )
    assert told["snapshot × as fast as"] > 0
    assert told["an update applied while a snapshot is written s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_replay_is_compared_with_memcpy_and_log_with_a_snapshot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = measures(capsys, "replay", "--elements", "65536", "--rounds", "1", "--codec", "int4")
    assert told["apply × as fast as"] > 0
    assert told["bytes that a node fetches after 8 missed steps ×"] < 1
    told = measures(capsys, "replay", "--elements", "65536", "--rounds", "1")
    assert told["bytes of all updates of 8 missed steps ×"] > 1
    assert told["bytes that a node fetches after 8 missed steps ×"] == 1


def test_cost_of_a_joiner_is_measured_in_member_rate_and_node_cpu_time() -> None:
    seen = MemberTimes(
        steps_before=[0.1, 0.1, 0.1],
        steps_coming=[0.1, 0.1, 0.13, 0.11],
        steps_fetching=[0.13, 0.12],
        node_s_before=[0.03, 0.05],
        node_s_extra=[0.1, 0.2],
        fetch_s=[2.0, 3.0],
    )
    found = {(line.measure, line.unit): line.value for line in lines(seen, 30.0)}
    assert found == {
        ("a member's inner-step rate while a joiner fetches at up to 30 Mbit/s", "ratio"): (
            pytest.approx(0.8)
        ),
        ("a member's inner-step rate from a joiner's start until it has the snapshot", "ratio"): (
            pytest.approx(0.1 / 0.11)
        ),
        ("processor time of a member's node per joiner", "extra CPU s"): pytest.approx(0.15),
        ("processor time of a member's node before a join", "CPU s per s"): pytest.approx(0.04),
        ("a joiner's fetch", "s"): pytest.approx(2.5),
    }
