"""Command-line options become a NodeConfig; `status` asks the node over its socket."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.outside import Outside
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import TryLater
from p2ptrain.ids import RunId
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.status import NodeStatus
from tests.cli.conftest import Command, fake_node


@pytest.fixture
def started() -> list[NodeConfig]:
    """Return the list of the nodes that commands have started."""
    return []


@pytest.fixture
def p2ptrain(p2ptrain: Command, started: list[NodeConfig]) -> Command:
    """Return a function that runs a command. If the command starts a node, the node is only added
    to `started` and ends at once with status 3."""

    def run_node(config: NodeConfig) -> int:
        started.append(config)
        return 3

    return partial(p2ptrain, around=Outside(run_node=run_node))


def test_node_without_options_has_the_defaults(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    assert p2ptrain("node", "--home", tmp_path).code == 3
    assert started == [NodeConfig(tmp_path, port_mapping=True, page_port=4280)]


def test_every_option_reaches_the_configuration(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    p2ptrain(
        *("node", "--home", tmp_path, "--bootstrap", "/a", "--bootstrap", "/b", "--listen", "/l"),
        *("--announce", "/n", "--data-listen", "[::1]:4202", "--seed", "--ranks", 2),
        *("--data-announce", "203.0.113.7:4203", "--relay-edges", 9, "--relay-per-day", "50GB"),
        *("--threads", 3, "--device", "cpu", "--limit-up", "8Mbit", "--run", "ab" * 32),
        *("--no-wait", "--yes", "--mdns", "--no-port-mapping", "--page-port", 4300, "-v"),
    )
    assert started == [
        NodeConfig(
            home=tmp_path,
            bootstrap=("/a", "/b"),
            listen=("/l",),
            announce=("/n",),
            data_host="::1",
            data_port=4202,
            data_announce=("203.0.113.7", 4203),
            seed=True,
            ranks=2,
            threads=3,
            device="cpu",
            limit_up_bytes_per_s=1_000_000,
            relay_edges=9,
            relay_bytes_per_day=50 * 10**9,
            wait_for_approval=False,
            run=RunId("ab" * 32),
            assume_yes=True,
            mdns=True,
            page_port=4300,
            verbose=True,
        )
    ]


def test_seed_has_fixed_ports_because_its_address_is_handed_out(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    p2ptrain("node", "--home", tmp_path, "--seed")
    p2ptrain("node", "--home", tmp_path, "--seed", "--listen", "/l", "--data-listen", ":0")
    fixed = NodeConfig(
        tmp_path, seed=True, port=4201, data_port=4202, port_mapping=True, page_port=4280
    )
    assert started == [fixed, replace(fixed, listen=("/l",), port=0, data_port=0)]


def test_relaying_can_be_switched_off(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    p2ptrain("node", "--home", tmp_path, "--no-relay", "--relay-edges", 9)
    assert started == [NodeConfig(tmp_path, port_mapping=True, page_port=4280, relay_edges=0)]


def test_page_can_be_switched_off(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    p2ptrain("node", "--home", tmp_path, "--no-page", "--page-port", 4300)
    assert started == [NodeConfig(tmp_path, port_mapping=True)]


def test_data_address_without_a_host_stands_for_all_addresses(
    p2ptrain: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    p2ptrain("node", "--home", tmp_path, "--data-listen", ":4202")
    assert started == [
        NodeConfig(tmp_path, data_host="", data_port=4202, port_mapping=True, page_port=4280)
    ]


def test_home_may_come_from_the_environment(
    p2ptrain: Command,
    started: list[NodeConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("P2PTRAIN_HOME", str(tmp_path))
    p2ptrain("node", "-q")
    assert started == [NodeConfig(tmp_path, port_mapping=True, page_port=4280, quiet=True)]


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "0"],
        ["--device", "tpu"],
        ["--limit-up", "8"],
        ["--relay-edges", "65"],
        ["--relay-per-day", "much"],
        ["--data-listen", "4202"],
        ["--data-listen", ":x"],
        ["--ranks-listen", ":29500"],
        ["--data-announce", "a.name:4202"],
        ["--data-announce", "203.0.113.7:0"],
        ["--run", "demo"],
    ],
)
def test_invalid_option_starts_no_node(
    words: list[str], p2ptrain: Command, started: list[NodeConfig]
) -> None:
    outcome = p2ptrain("node", *words)
    assert outcome.code == 2
    assert "error[CONFIG]" in outcome.err
    assert "  do      " in outcome.err
    assert started == []


STATUS = NodeStatus("12D3KooWExampleAbCdEf", "brave-otter", "training (inner 3/8)", "training")


def test_status_shows_the_nodes_report(p2ptrain: Command, tmp_path: Path) -> None:
    reply = json.dumps(STATUS.to_json()).encode() + b"\n"
    with fake_node(tmp_path, reply, reply) as requests:
        plain = p2ptrain("status", "--home", tmp_path)
        value = p2ptrain("status", "--home", tmp_path, "--json")
    assert requests == [{"command": "status"}] * 2
    assert plain.out.splitlines()[0] == "brave-otter (…AbCdEf): training (inner 3/8)"
    assert value.json == json.loads(json.dumps(STATUS.to_json()))


def test_control_characters_in_a_status_are_replaced(p2ptrain: Command, tmp_path: Path) -> None:
    status = {**STATUS.to_json(), "warnings": ["all\nfine\x1b[2J"]}
    with fake_node(tmp_path, json.dumps(status).encode() + b"\n"):
        outcome = p2ptrain("status", "--home", tmp_path)
    assert "warning   all·fine·[2J\n" in outcome.out


def test_socket_of_a_killed_node_is_reported_like_a_missing_node(
    p2ptrain: Command, tmp_path: Path
) -> None:
    assert p2ptrain("status", "--home", tmp_path).code == 75
    with fake_node(tmp_path):
        pass
    outcome = p2ptrain("status", "--home", tmp_path)
    assert (outcome.code, outcome.out) == (75, "")
    assert "error[NO-NODE]" in outcome.err
    assert f"p2ptrain node --bootstrap ADDRESS --home {tmp_path}" in outcome.err


@pytest.mark.parametrize(
    ("records", "evidence", "do"),
    [
        (["started", "stopped"], "the last node here was stopped by its user", "start one"),
        (["started", "beat"], "wrote its last line, without a reason", "it was killed"),
        (["started", "full"], "ended: [DISK-LOW] the disk was full", "p2ptrain explain DISK-LOW"),
    ],
)
def test_missing_node_is_reported_with_the_reason_why_it_ended(
    records: list[str], evidence: str, do: str, p2ptrain: Command, tmp_path: Path
) -> None:
    with Journal(Home(tmp_path).journal) as journal:
        for each in records:
            if each == "full":
                journal.write("stopped", code="DISK-LOW", reason="the disk was full")
            else:
                journal.write(each, **({"code": ""} if each == "stopped" else {}))
    outcome = p2ptrain("status", "--home", tmp_path)
    assert outcome.err.startswith("error[NO-NODE]")
    assert evidence in outcome.err
    assert do in outcome.err


def test_live_node_without_a_socket_is_not_reported_as_missing(
    p2ptrain: Command, tmp_path: Path
) -> None:
    with sole_use(Home(tmp_path)):
        outcome = p2ptrain("status", "--home", tmp_path)
    assert outcome.code == 75
    assert outcome.err.startswith(
        f"error[NODE-SILENT] the process that uses {tmp_path} does not answer"
    )
    assert "error[NO-NODE]" in p2ptrain("status", "--home", tmp_path).err


def test_starting_node_is_not_reported_as_missing(p2ptrain: Command, tmp_path: Path) -> None:
    early = NodeStatus(STATUS.peer, "brave-otter", "awaiting approval", "awaiting approval")
    refused = {"error": "not yet: the node in this home is awaiting approval", "code": "NOT-YET"}
    replies = [json.dumps(each).encode() + b"\n" for each in (early.to_json(), refused)]
    with fake_node(tmp_path, *replies):
        shown = p2ptrain("status", "--home", tmp_path)
        with pytest.raises(TryLater) as caught:
            send_command(tmp_path, "pending")
    assert shown.out.startswith("brave-otter (…AbCdEf): awaiting approval\n")
    assert (caught.value.code, caught.value.what) == ("NOT-YET", refused["error"])


def test_home_whose_path_is_too_long_for_a_socket_works(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    with pytest.raises(TryLater):
        send_command(deep / "missing", "status")
    shallow = tmp_path / "short"
    shallow.mkdir()
    with fake_node(shallow, b'{"ok":true}\n'):
        (shallow / "control.sock").rename(deep / "control.sock")
        assert send_command(deep, "status") == {"ok": True}


def test_command_stops_waiting_for_a_silent_node(tmp_path: Path) -> None:
    with fake_node(tmp_path, b"{}\n"):
        with pytest.raises(TryLater) as caught:
            ask_silently(tmp_path)
        assert send_command(tmp_path, "status") == {}
    assert caught.value.code == "NODE-SILENT"


def ask_silently(home: Path) -> None:
    """Ask a socket that accepts connections into its backlog and never answers."""
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        path = home / "silent"
        path.mkdir()
        listener.bind(str(path / "control.sock"))
        listener.listen()
        send_command(path, "status", deadline_s=0.05)
