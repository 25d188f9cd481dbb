"""The control socket, over which commands reach a running node, answers each line once. Its clients
cannot harm the node."""

from __future__ import annotations

import gc
import json
import stat
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.node.control.control_socket import (
    ALL_ORDERS,
    COMMANDS,
    LINE_BYTES_MAX,
    STATUSES,
    serve_commands,
)
from p2ptrain.node.joining.startup_status import GONE, StartupStatus
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.join_requests import Applicant
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import AwaitingApproval, Connecting
from p2ptrain.observe.status import NodeStatus, status_lines
from p2ptrain.run import Allowlist, SignedAllowlist, save_allowlist
from p2ptrain.testing.published import publish
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, rig, settled
from tests.node.swarm import Diary


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Rig]:
    async with rig(folder, allowed=[ANN.peer]) as r, trio.open_nursery() as nursery:
        reception = StartupStatus(r.context.me, r.context.journal)
        nursery.start_soon(serve_commands, r.context.home.control, reception)
        await opened(r.context.home.control)
        async with reception.with_context(r.context):
            yield r
        nursery.cancel_scope.cancel()


async def opened(path: Path) -> None:
    """Wait until a node listens at the socket `path`."""
    never = trio.Event()
    with trio.fail_after(30.0):
        while True:
            try:
                return await (await trio.open_unix_socket(str(path))).aclose()
            except OSError:
                with trio.move_on_after(0.002):
                    await never.wait()


async def answer(r: Rig, line: bytes) -> dict[str, object]:
    return await answer_at(r.context.home.control, line)


async def answer_at(path: Path, line: bytes) -> dict[str, object]:
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(line)
        received = b""
        while piece := await stream.receive_some():
            received += piece
    value = json.loads(received)
    assert isinstance(value, dict)
    return value


async def test_answer_to_status_is_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        status = NodeStatus.from_json(await answer(r, b'{"command":"status"}\n'))
        assert (status.peer, status.run) == (r.context.me, r.run.id)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"status\n",
        b"[]\n",
        b"7\n",
        b"{}\n",
        b'{"command":"halt"}\n',
        b'{"command":["status"]}\n',
        b'{"command":{}}\n',
        b"\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b"x" * LINE_BYTES_MAX,
    ],
    ids=lambda line: str(line[:24]),
)
async def test_answer_to_an_unknown_command_lists_the_valid_ones(
    tmp_path: Path, line: bytes
) -> None:
    async with serving(tmp_path) as r:
        said = await answer(r, line)
        assert said == {
            "error": f"unknown command; the commands are {', '.join((*COMMANDS, *ALL_ORDERS))}"
        }
        assert "peer" in await answer(r, b'{"command":"status"}\n')


async def test_client_that_hangs_up_or_stays_silent_does_not_disturb_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        silent = await trio.open_unix_socket(str(r.context.home.control))
        for line in (b"", b'{"command"', b'{"command":"status"}\n'):
            async with await trio.open_unix_socket(str(r.context.home.control)) as stream:
                await stream.send_all(line)
        assert "peer" in await answer(r, b'{"command":"status"}\n')
        await silent.aclose()


async def test_unreadable_allowlist_is_reported_and_the_old_one_stays(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        r.context.home.allowlist.write_bytes(b"damaged")
        assert (await answer(r, b'{"command":"reload-allowlist"}\n'))["code"] == "RUN-FILE"
        r.context.home.allowlist.unlink()
        r.context.home.allowlist.mkdir()
        assert (await answer(r, b'{"command":"reload-allowlist"}\n'))["code"] == "OS"
        assert r.context.admission.admits(ANN.peer)


async def test_allowlist_that_the_organiser_wrote_is_used_after_a_reload(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        newer = Allowlist.of(r.run.id, 2, [BOB.peer])
        organiser = load_or_create(r.context.home.identity)
        save_allowlist(r.context.home.allowlist, SignedAllowlist.publish(organiser, newer))
        asked_s = r.context.now()
        r.context.join_requests.pending[BOB.peer] = Applicant(
            asked_s, "", b"", asked_s, "Bob, two GPUs", CAI.peer, "cuda", "public"
        )
        (told,) = json.loads(json.dumps(await answer(r, b'{"command":"join-requests"}\n')))[
            "requests"
        ]
        assert told.pop("age_s") >= 0
        stated = {"device": "cuda", "reach": "public"}
        assert told == {"peer": BOB.peer, "note": "Bob, two GPUs", "via": CAI.peer} | stated
        assert await answer(r, b'{"command":"pending"}\n') == {"pending": [BOB.peer]}
        said = await answer(r, b'{"command":"reload-allowlist"}\n')
        assert said == {"newer": True, "sequence": 2}
        assert (r.context.admission.admits(ANN.peer), r.context.admission.admits(BOB.peer)) == (
            False,
            True,
        )
        assert await answer(r, b'{"command":"pending"}\n') == {"pending": []}


async def test_socket_is_private_and_replaces_an_old_file(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        path = r.context.home.control
        path.write_text("left by a node that was killed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_commands, path, StartupStatus(r.context.me, r.context.journal))
            await opened(path)
            assert "peer" in await answer(r, b'{"command":"status"}\n')
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            nursery.cancel_scope.cancel()
        assert not path.exists()


async def test_socket_works_in_a_home_with_a_very_long_path(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path / ("deep" * 40))
    reception = StartupStatus(r.context.me, r.context.journal)
    nursery.start_soon(serve_commands, r.context.home.control, reception)
    await settled(r.context.home.control.exists)


@asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[tuple[Path, StartupStatus, Diary]]:
    """Serve the control socket of a node that is still starting."""
    with Diary(folder / "journal.jsonl") as diary:
        reception, path = StartupStatus(ANN.peer, diary), folder / "control.sock"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_commands, path, reception)
            await opened(path)
            yield path, reception, diary
            nursery.cancel_scope.cancel()


async def test_status_of_a_starting_node_shows_its_progress(tmp_path: Path) -> None:
    async with starting(tmp_path) as (path, reception, diary):
        ask = b'{"command":"status"}\n'
        first = NodeStatus.from_json(await answer_at(path, ask))
        assert (first.peer, first.state, first.run) == (ANN.peer, "starting", "")
        reception.set_state(Connecting())
        reception.run = publish(Home(tmp_path / "home"))
        reception.set_state(AwaitingApproval(), "ask the organiser")
        told = NodeStatus.from_json(await answer_at(path, ask))
        assert (told.state, told.state_name) == ("awaiting approval", "awaiting approval")
        assert (told.run, told.waits_for) == (reception.run.id, "ask the organiser")
        head, run, waits, up = status_lines(told)
        assert head.endswith(": awaiting approval")
        assert run.startswith("run       ")
        assert waits == "next      ask the organiser"
        assert up.startswith("uptime    ")
        states = [record["state"] for record in diary.records if record["event"] == "state"]
        assert states == ["connecting", "awaiting approval"]


async def test_warnings_about_the_machine_are_shown_from_the_start(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        reception = StartupStatus(r.context.me, r.context.journal)
        both = (
            Caution("SHM-SMALL", "little shared memory", "give it more"),
            Caution("DISK-LOW", "a small disk", "make room"),
        )
        assert reception.doubt(both[:1]) == [both[0]]
        assert reception.doubt(both) == [both[1]]
        assert reception.status().cautions == both
        r.context.alerts.show("flood", Caution("FLOOD", "many messages"))
        r.context.alerts.doubts = reception.doubts  # The context is created with these warnings.
        async with reception.with_context(r.context):
            said = NodeStatus.from_json(await reception.obeyed(COMMANDS["status"]))
        assert said.cautions == (*both, Caution("FLOOD", "many messages"))
        assert said.warnings == (
            "little shared memory: give it more (p2ptrain explain SHM-SMALL)",
            "a small disk: make room (p2ptrain explain DISK-LOW)",
            "many messages (p2ptrain explain FLOOD)",
        )
        told = [each["code"] for each in r.said("doubt")]
        assert told == ["SHM-SMALL", "DISK-LOW"]


@pytest.mark.parametrize("order", sorted(set(COMMANDS) - STATUSES))
async def test_starting_node_refuses_commands_with_a_reason(order: str, tmp_path: Path) -> None:
    async with starting(tmp_path) as (path, reception, _):
        reception.set_state(AwaitingApproval())
        said = await answer_at(path, json.dumps({"command": order}).encode() + b"\n")
        assert said == {
            "error": "not yet: the node in this home is awaiting approval",
            "code": "NOT-YET",
        }


async def test_running_command_is_cancelled_before_its_context_is_closed(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        reception, begun = StartupStatus(r.context.me, r.context.journal), trio.Event()
        answers: list[dict[str, object]] = []
        ended: list[bool] = []

        async def endless(context: Context) -> dict[str, object]:
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                ended.append(True)
            return {}

        async def ask() -> None:
            answers.append(await reception.obeyed(endless))

        async with trio.open_nursery() as nursery:
            async with reception.with_context(r.context):
                nursery.start_soon(ask)
                await begun.wait()
            assert ended == [True]
        assert answers == [GONE]
        assert (reception.context, reception.status().state) == (None, "starting")


async def test_cancelled_start_does_not_leave_a_socket(tmp_path: Path) -> None:
    with Diary(tmp_path / "journal.jsonl") as diary, warnings.catch_warnings():
        warnings.simplefilter("error")
        with trio.CancelScope() as scope:
            scope.cancel()
            await serve_commands(tmp_path / "control.sock", StartupStatus(ANN.peer, diary))
        gc.collect()
    assert not (tmp_path / "control.sock").exists()


async def test_order_with_arguments_reaches_the_node(tmp_path: Path) -> None:
    async with serving(tmp_path) as r:
        said = await answer(r, b'{"command":"pause","for_s":3600}\n')
        assert str(said["done"]).startswith("paused until ")
        assert r.context.state.pause is not None
        said = await answer(r, b'{"command":"pause","for_s":-1}\n')
        assert said["code"] == "CONFIG"
        said = await answer(r, b'{"command":"limit","up":"20Mbit"}\n')
        assert said["limits"] == {
            "up_bytes_per_s": 2_500_000,
            "down_bytes_per_s": None,
            "daily_bytes": None,
            "threads": None,
            "gpu_bytes": None,
        }
