"""`p2ptrain doctor` finds planted faults of the installation, the home, the ports and the way to a
run, and says how to repair each of them. On a healthy machine it finds none. It changes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import p2ptrain
from p2ptrain.archive.home import Home, sole_use
from p2ptrain.identity import Identity
from p2ptrain.peers.hello_messages import HelloReply
from p2ptrain.run import Run, Signed
from p2ptrain.run.versions import VERSION
from tests.faults.answering import (
    STRANGER,
    at,
    dead_port,
    hangs_up,
    is_a_web_server,
    peer,
    says_nothing,
    server,
)
from tests.faults.conftest import JOINER, Here
from tests.faults.processes import NodeProcess, home_of
from tests.faults.screen import Screen
from tests.faults.test_home import contents

OTHER = Identity.from_seed(b"other organiser".ljust(32))
HEALTHY_S = 60.0
"""Promised time of the command. On an idle machine it takes less than ten seconds."""

WITHOUT_ROUTER = "--no-port-mapping"
"""Tests do not ask the router of this machine for anything."""

Line = dict[str, Any]


def told(screen: Screen) -> list[Line]:
    """Return the findings in the JSON of a command."""
    value = json.loads(screen.out)
    assert value["schema"] == 1
    assert value["status"] == screen.status
    assert "Traceback" not in screen.err
    findings: list[Line] = value["findings"]
    return findings


def worst(findings: list[Line]) -> Line:
    """Return the only fault. There must be exactly one."""
    (found,) = [each for each in findings if each["level"] == "fault"]
    return dict(found)


def named(findings: list[Line], name: str) -> Line:
    (found,) = [each for each in findings if each["name"] == name]
    return found


@pytest.fixture
def doctor(here: Here, tmp_path: Path) -> Here:
    """Return a function that runs `p2ptrain doctor --seed --json` in this process. A seed does not
    need torch, whose trial has tests of its own.
    """

    def run(*words: object, home: Path = tmp_path / "home") -> Screen:
        return here("doctor", "--seed", "--json", WITHOUT_ROUTER, "--home", home, *words)

    return run


# ── the way to a run ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "code", "said", "fix"),
    [
        (None, "NET-REFUSED", "refused", "check that the peer is running"),
        (says_nothing, "NET-SILENT", "it sent no data", "check the port"),
        (is_a_web_server, "NET-NOT-LIBP2P", "does not speak libp2p", "check the port"),
        (hangs_up, "NET-RESET", "closed the connection", "ask the peer's owner"),
    ],
    ids=["refused", "silent", "web server", "hangs up"],
)
def test_address_without_a_peer_is_explained(
    answer: Callable[[socket.socket], None] | None,
    code: str,
    said: str,
    fix: str,
    doctor: Here,
) -> None:
    if answer is None:
        screen = doctor("--bootstrap", at(dead_port()))
    else:
        with server(answer) as port:
            screen = doctor("--bootstrap", at(port))
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("bootstrap", code, 5)
    assert said in found["said"]
    assert fix in found["fix"]


@pytest.mark.parametrize(
    ("address", "code", "status", "fix"),
    [
        ("203.0.113.7:4201", "ADDR-SYNTAX", 2, "give an address like /ip4/"),
        ("/ip4/127.0.0.1/tcp/4201", "ADDR-NO-PEER-ID", 2, "ask for the complete address"),
        (f"/dns4/no-such-host.invalid/tcp/1/p2p/{STRANGER}", "NET-DNS", 5, "check the address"),
    ],
)
def test_useless_address_is_explained(
    address: str, code: str, status: int, fix: str, doctor: Here
) -> None:
    screen = doctor("--bootstrap", address)
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("bootstrap", code, status)
    assert fix in found["fix"]


def test_address_of_another_peer_is_explained(doctor: Here, seed: NodeProcess) -> None:
    address, _, real = seed.address().rpartition("/p2p/")
    screen = doctor("--bootstrap", f"{address}/p2p/{STRANGER}")
    found = worst(told(screen))
    assert (found["code"], screen.status) == ("NET-WRONG-ID", 5)
    assert real in found["said"]
    assert "new address" in found["fix"]


def test_dead_address_is_only_a_warning_beside_one_that_answers(
    doctor: Here, seed: NodeProcess
) -> None:
    screen = doctor("--bootstrap", at(dead_port()), "--bootstrap", seed.address())
    dead, answering = (each for each in told(screen) if each["name"] == "bootstrap")
    assert (dead["level"], answering["level"], screen.status) == ("warning", "good", 0)
    assert "another address answers" in dead["fix"]


def of_version(run: Run, version: int) -> bytes:
    """Return the run as if a later p2ptrain had made and signed it."""
    payload = replace(run.manifest, organiser=OTHER.peer).to_payload()
    changed = payload.replace(b"\xa7version" + bytes([VERSION]), b"\xa7version" + bytes([version]))
    assert changed != payload
    return Signed.by(OTHER, "manifest", changed).to_bytes()


def test_run_of_a_later_version_is_explained(doctor: Here, run: Run) -> None:
    reply = HelloReply(of_version(run, 99), b"", b"", False, {})
    with peer(OTHER, lambda: reply) as other:
        screen = doctor("--bootstrap", other.address)
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("run", "RUN-VERSION", 7)
    assert found["fix"] == "upgrade p2ptrain"


def test_peer_that_sends_nonsense_is_explained(doctor: Here) -> None:
    with peer(OTHER, lambda: HelloReply(b"nonsense", b"", b"", True, {})) as other:
        screen = doctor("--bootstrap", other.address)
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("run", "PEER-PROTOCOL", 5)
    assert "address of another node" in found["fix"]


def test_other_run_than_in_the_home_is_explained(doctor: Here, organiser: Path, run: Run) -> None:
    theirs = Run.publish(OTHER, replace(run.manifest, name="theirs", organiser=OTHER.peer))
    with peer(OTHER, lambda: HelloReply(theirs.to_bytes(), b"", b"", True, {})) as other:
        screen = doctor("--bootstrap", other.address, home=organiser)
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("run", "RUN-MISMATCH", 3)
    assert "serves 'theirs'" in found["said"]
    assert "--home with a new folder" in found["fix"]


def test_other_run_than_asked_for_is_explained(doctor: Here, seed: NodeProcess) -> None:
    screen = doctor("--bootstrap", seed.address(), "--run", "ab" * 32)
    found = worst(told(screen))
    assert (found["code"], screen.status) == ("RUN-MISMATCH", 3)
    assert "--run" in found["fix"]


def test_newcomer_learns_how_to_be_admitted_and_why_no_rate_was_measured(
    doctor: Here, seed: NodeProcess, tmp_path: Path
) -> None:
    screen = doctor("--bootstrap", seed.address())
    found = told(screen)
    admission, unhelped = named(found, "admission"), named(found, "help of members")
    assert (admission["level"], admission["code"], screen.status) == ("warning", "AUTH-PENDING", 0)
    assert f"p2ptrain id --home {tmp_path / 'home'}" in admission["fix"]
    assert "members help only peers that the run admits" in unhelped["said"]
    assert not (tmp_path / "home").exists()


def test_stranger_with_a_key_learns_what_the_organiser_must_do(
    doctor: Here, seed: NodeProcess, tmp_path: Path
) -> None:
    home = home_of(OTHER, tmp_path)
    found = named(told(doctor("--bootstrap", seed.address(), home=home)), "admission")
    assert found["code"] == "AUTH-PENDING"
    assert f"p2ptrain peers approve {OTHER.peer}" in found["fix"]


# ── the home, the disk and the ports ─────────────────────────────────────────────────────────────


def a_file(home: Path) -> None:
    home.touch()


def open_to_all(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)


def with_a_link(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "votes.log").symlink_to("/dev/null")


def with_a_broken_run(home: Path) -> None:
    (home / "run").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "run" / "manifest.signed").write_bytes(b"nonsense")


@pytest.mark.parametrize(
    ("damage", "code", "status", "fix"),
    [
        (a_file, "HOME", 2, "--home DIR"),
        (open_to_all, "HOME-UNSAFE", 2, "chmod go-w"),
        (with_a_link, "HOME-UNSAFE", 2, "rm "),
        (with_a_broken_run, "RUN-FILE", 2, "move"),
    ],
)
def test_damaged_home_is_explained(
    damage: Callable[[Path], None], code: str, status: int, fix: str, doctor: Here, tmp_path: Path
) -> None:
    damage(tmp_path / "home")
    screen = doctor()
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == ("home", code, status)
    assert fix in found["fix"]


@pytest.mark.parametrize(
    ("stop", "code", "said", "fix"),
    [
        ({"code": "ID-IN-USE", "reason": "this identity is in use"}, "ID-IN-USE", "in use", "copy"),
        ({"code": "DISK-LOW", "reason": "the disk is full"}, "DISK-LOW", "is full", "Make room"),
        (None, "NODE-KILLED", "did not say why", "start the node again"),
    ],
    ids=["identity in use", "full disk", "killed"],
)
def test_reason_of_the_last_stop_is_shown(
    stop: dict[str, str] | None, code: str, said: str, fix: str, doctor: Here, tmp_path: Path
) -> None:
    home, now = tmp_path / "home", time.time()
    home.mkdir(mode=0o700)
    lines = [{"event": "started", "time": now - 9000}]
    lines += [{"event": "stopped", "time": now - 7500, **stop}] if stop else []
    (home / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    screen = doctor()
    found = named(told(screen), "last stop")
    assert (found["level"], found["code"], screen.status) == ("warning", code, 0)
    assert said in found["said"]
    assert "2 hours ago" in found["said"]
    assert fix in found["fix"]


@pytest.mark.parametrize(
    ("option", "where", "name"),
    [
        ("--listen", "/ip4/127.0.0.1/tcp/{}", "control port"),
        ("--data-listen", "127.0.0.1:{}", "data port"),
    ],
)
def test_port_in_use_is_explained_with_its_program(
    option: str, where: str, name: str, doctor: Here
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        screen = doctor(option, where.format(port))
    found = worst(told(screen))
    assert (found["name"], found["code"], screen.status) == (name, "PORT-IN-USE", 2)
    assert f"(process {os.getpid()}) listens on it" in found["said"]
    assert f"{option}, such as {port + 2}" in found["fix"]


def test_running_node_is_no_fault_and_is_not_disturbed(
    doctor: Here, organiser: Path, seed: NodeProcess
) -> None:
    before = contents(organiser)
    with sole_use(Home(organiser)):
        screen = doctor(seed.address(), home=organiser)
    found = told(screen)
    assert f"a node is running in {organiser}" in named(found, "home")["said"]
    assert "a node is running here" in named(found, "help of members")["said"]
    assert contents(organiser) == before
    assert screen.status == 0


# ── the installation ─────────────────────────────────────────────────────────────────────────────


def run_alone(*words: object, folder: Path | None = None) -> Screen:
    """Run the command as a user does, in a process of its own. `folder`: run the p2ptrain there."""
    done = subprocess.run(
        [sys.executable, "-m", "p2ptrain.cli", "doctor", WITHOUT_ROUTER, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=2 * HEALTHY_S,
        env=os.environ | ({"PYTHONPATH": str(folder)} if folder else {}),
        cwd=folder,
        check=False,
    )
    return Screen(done.returncode, done.stdout, done.stderr)


def test_missing_kernels_are_explained_and_other_checks_go_on(tmp_path: Path) -> None:
    source = Path(p2ptrain.__file__).parent
    leave_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(source, tmp_path / "copy" / "p2ptrain", ignore=leave_out)
    home = tmp_path / "home"
    screen = run_alone("--seed", "--json", "--home", home, folder=tmp_path / "copy")
    found = told(screen)
    assert named(found, "kernels")["code"] == "KERNELS"
    assert "scripts/setup" in named(found, "kernels")["fix"]
    assert named(found, "disk space")["level"] == "good"
    assert {each["code"] for each in found} <= {"", "KERNELS", "INSTALLATION"}
    assert screen.status == 4


def test_too_few_open_files_are_explained(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "p2ptrain.cli", "doctor", "--seed", "--json", WITHOUT_ROUTER]
    limited = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", *words, "--home", str(tmp_path)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=100, check=False)
    found = worst(told(Screen(done.returncode, done.stdout, done.stderr)))
    assert (found["name"], found["code"], done.returncode) == ("open files", "FD-LIMIT", 4)
    assert "ulimit -n 4096" in found["fix"]


# ── a healthy machine ────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs_torch
def test_volunteer_on_a_healthy_machine_finds_everything_in_order(
    seed: NodeProcess, run: Run, tmp_path: Path
) -> None:
    home = home_of(JOINER, tmp_path)
    before = contents(home)
    began = time.monotonic()
    screen = run_alone("--home", home, "--bootstrap", seed.address())
    seconds = time.monotonic() - began
    assert screen.status == 0, screen.out
    lines = screen.out.splitlines()
    assert [line for line in lines if line[:1] == "✗"] == []
    names = [line[3:21].strip() for line in lines if line[:1] == "✓"]
    for name in ("kernels", "torch", "device", "all-gather", "bootstrap", "run", "admission"):
        assert name in names
    said = {line[3:21].strip(): line[23:] for line in lines}
    assert run.id[:12] in said["run"]
    assert "Mbit/s down" in said["transfer rate"]
    assert "unknown" not in said["transfer rate"]
    for name in ("dial-back", "NAT kind"):
        assert "on this machine or in your own network" in said[name]
    assert "tokens a day" in said["your share"]
    assert "can run here" in lines[-1]
    assert contents(home) == before
    assert list(home.iterdir()) == [home / "identity.key"]
    assert seconds < HEALTHY_S
