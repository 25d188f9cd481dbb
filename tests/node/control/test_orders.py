"""The owner's orders take effect at once, are kept in the home, and refuse nonsense."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from p2ptrain.availability.decision import GpuWatch, Pause
from p2ptrain.availability.usage import Usage
from p2ptrain.availability.wishes import Limits, Wishes
from p2ptrain.errors import ConfigError
from p2ptrain.node.control.machine_facts import MachineFacts, used_by_others
from p2ptrain.node.control.orders import ORDERS, lost_steps
from p2ptrain.node.control.pausing import (
    UNAVAILABLE,
    Pausing,
    load_usage,
    load_wishes,
    save_usage,
    set_pause,
)
from p2ptrain.node.control.status import status
from p2ptrain.observe.states import Exchanging, Leaving, Training
from p2ptrain.observe.status import status_lines
from tests.availability.test_windows import BERLIN, at
from tests.node.rig import Rig, rig, settled


async def order(r: Rig, command: str, **arguments: object) -> Mapping[str, object]:
    return await ORDERS[command](r.context, request=arguments)


async def test_pause_is_shown_kept_and_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.context.state.set_state(Training(3, 8))
        answer = await order(r, "pause", for_s=3600)
        assert str(answer["done"]).startswith("paused until ")
        assert r.context.shown.name == "paused"
        assert load_wishes(r.context.home.availability) == r.context.state.wishes
        said = await status(r.context)
        assert said.state == f"paused: {answer['paused']}"
        assert said.paused["kind"] == "owner"
        answer = await order(r, "resume")
        assert (
            answer["done"] == "resumed: the trainer starts, and contributes in the next outer step"
        )
        assert r.context.shown == Training(3, 8)
        assert (await order(r, "resume"))["done"] == "this node was not paused"
        assert load_wishes(r.context.home.availability) == Wishes()


async def test_pause_without_an_end_is_not_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await order(r, "pause")
        assert r.context.state.wishes.paused
        assert load_wishes(r.context.home.availability) == Wishes()


async def test_other_reasons_outlive_resume(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.context.state.usage = Usage("2026-11-26", 10**6, 0)
        await order(r, "limit", daily=10**6)
        answer = await order(r, "resume")
        assert str(answer["done"]).startswith(
            "your pause has ended, but this node stays paused: your"
        )


async def test_exchange_and_goodbye_are_shown_in_place_of_a_pause(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        set_pause(r.context, Pause("owner", "x"))
        r.context.state.set_state(Exchanging())
        assert r.context.shown.name == "exchanging"
        r.context.state.leaving = True
        r.context.state.set_state(Leaving())
        assert r.context.shown.name == "leaving"


async def test_lost_inner_steps_are_named(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert lost_steps(r.context) == ""
        trainer = r.context.trainer
        trainer.up, trainer.inner_step, trainer.inner_steps = True, 3, 8
        answer = await order(r, "pause")
        assert "; 3 of 8 inner steps are lost, and trained again" in str(answer["done"])


@pytest.mark.parametrize("for_s", [0, -1, "2h", True, float("nan"), float("inf"), 10**9])
async def test_invalid_durations_are_refused(tmp_path: Path, for_s: object) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(ConfigError):
            await order(r, "pause", for_s=for_s)
        assert r.context.state.wishes == Wishes()


async def test_seed_cannot_be_paused(tmp_path: Path) -> None:
    async with rig(tmp_path, seed=True) as r:
        with pytest.raises(ConfigError):
            await order(r, "pause")


async def test_limits_change_the_rates_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        plane = r.context.plane
        assert (plane.uplink.limited, plane.downlink.limited) == (False, False)
        answer = await order(r, "limit", up="20Mbit", down=10**6, daily="50GB", threads=4)
        assert (plane.uplink.limited, plane.downlink.limited) == (True, True)
        limits = Limits(2_500_000, 10**6, 50 * 10**9, 4)
        assert r.context.state.wishes.limits == limits
        assert load_wishes(r.context.home.availability).limits == limits
        assert "--threads takes effect when the trainer next starts" in str(answer["done"])
        shown = "up 20 Mbit/s, down 8 Mbit/s, 50.0 GB a day, 0 bytes of them used today, 4 threads"
        assert answer["shown"] == shown
        assert f"limits    {shown}" in status_lines(await status(r.context))
        await order(r, "limit", up="off", down=None)
        assert (plane.uplink.limited, plane.downlink.limited) == (False, False)


async def test_option_applies_again_once_the_owners_limit_is_off(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.configure(limit_up_bytes_per_s=10**6)
        assert r.context.limit_up_bytes_per_s == 10**6
        await order(r, "limit", up=2 * 10**6)
        assert r.context.limit_up_bytes_per_s == 2 * 10**6
        answer = await order(r, "limit", up=None)
        assert answer["shown"] == "up 8 Mbit/s (by --limit-up)"
        assert r.context.plane.uplink.limited


@pytest.mark.parametrize(
    "limit",
    [
        {"up": 10},
        {"daily": "much"},
        {"threads": 0},
        {"threads": "four"},
        {"threads": "9" * 5000},
        {"gpu_mem": []},
        {"down": True},
    ],
)
async def test_invalid_limits_are_refused(tmp_path: Path, limit: dict[str, object]) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(ConfigError):
            await order(r, "limit", **limit)
        assert r.context.state.wishes == Wishes()


async def test_schedule_names_its_reason_in_the_status(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        now = [at("2026-11-26 12:00")]
        pausing = Pausing(r.context, wall=lambda: now[0], tz=BERLIN)
        answer = await order(r, "schedule", windows="22:00-07:00", on_battery=True)
        assert answer["done"] == "trains 22:00-07:00 (local time), but not on battery"
        pausing.decide()
        words = "paused: outside your schedule 22:00-07:00; training resumes at 22:00"
        said = await status(r.context)
        assert (said.state, said.state_name) == (words, "paused")
        now[0] = at("2026-11-26 22:00")
        pausing.decide()
        assert r.context.state.pause is None
        await order(r, "schedule", windows=None)
        assert r.context.state.wishes.schedule is None


async def test_pause_ends_at_its_time_without_an_order(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        nursery.start_soon(Pausing(r.context).run)
        await order(r, "pause", for_s=0.05)
        await settled(lambda: r.context.state.pause is None)
        assert r.context.state.wishes == Wishes()
        assert [each["kind"] for each in r.said("paused")] == ["owner"]
        assert [each["kind"] for each in r.said("resumed")] == ["owner"]
        nursery.cancel_scope.cancel()


async def test_battery_gpu_and_user_pause_a_node_if_its_owner_wants(tmp_path: Path) -> None:
    used = at("2026-11-26 12:00")
    machine = [MachineFacts(on_battery=True, gpu_used_by="blender", used_at=used)]
    asked = []

    def ask(*, battery: bool, gpu: bool, user: bool) -> MachineFacts:
        asked.append((battery, gpu, user))
        return machine[0]

    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        gpu = GpuWatch(busy_s=0.0, idle_s=0.0)
        pausing = Pausing(r.context, wall=lambda: used + 1, ask_machine=ask, gpu=gpu)
        nursery.start_soon(lambda: pausing.run(look_s=0.01))
        await order(r, "schedule", on_battery=True, when_gpu_busy=True, when_in_use=True)
        await settled(lambda: r.context.state.pause and r.context.state.pause.kind == "battery")
        machine[0] = MachineFacts(gpu_used_by="blender", used_at=used)
        await settled(lambda: r.context.state.pause and r.context.state.pause.kind == "gpu")
        assert asked[0] == (True, True, True)
        machine[0] = MachineFacts(used_at=used)
        await settled(lambda: r.context.state.pause and r.context.state.pause.kind == "user")
        words = "somebody uses this machine; training resumes after 10 min without input"
        assert (await status(r.context)).state == f"paused: {words}"
        missing = "nvidia-smi does not report which programs use the GPU"
        machine[0] = MachineFacts(missing=(missing,))
        await settled(lambda: r.context.state.pause is None and UNAVAILABLE in r.context.alerts)
        assert (await status(r.context)).schedule.endswith(f"({missing})")
        nothing = {"when_gpu_busy": False, "on_battery": False, "when_in_use": False}
        await order(r, "schedule", **nothing)
        await settled(lambda: UNAVAILABLE not in r.context.alerts)
        nursery.cancel_scope.cancel()


PMON = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0       1000     C     97     40      -      -      -      -    python
    0       2000     G      3      1      -      -      -      -    Xorg
    0       3000   C+G     45     20      -      -      -      -    blender
    1          -     -      -      -      -      -      -      -    -
"""


def test_other_programs_on_the_gpu_are_told_apart() -> None:
    def everywhere(pid: int) -> bool:
        return True

    assert used_by_others(PMON, {1000}, exists=everywhere) == "blender"
    assert used_by_others(PMON, {1000, 3000}, exists=everywhere) == ""
    assert used_by_others("", {1000}, exists=everywhere) == ""
    assert used_by_others(PMON, {7}, exists=lambda pid: pid == 2000) == ""
    assert used_by_others(PMON, {7}, exists=lambda pid: False) is None


def test_damaged_file_of_wishes_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "availability.json"
    assert load_wishes(path) == Wishes()
    path.write_text("{")
    with pytest.raises(ConfigError) as caught:
        load_wishes(path)
    assert str(path) in caught.value.what


async def test_usage_is_counted_by_day_and_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        now = [at("2026-11-26 23:59")]
        pausing = Pausing(r.context, wall=lambda: now[0], tz=BERLIN)
        r.context.blobs.fetched_bytes = 100
        r.context.reduce.received_bytes = 10
        pausing.decide()
        assert r.context.state.usage == Usage("2026-11-26", 0, 110)
        save_usage(r.context, r.context.state.usage)
        assert load_usage(r.context.home.usage) == Usage("2026-11-26", 0, 110)
        now[0] += 120
        r.context.blobs.fetched_bytes += 5
        pausing.decide()
        assert r.context.state.usage == Usage("2026-11-27", 0, 5)
        assert (await status(r.context)).bytes_today == {"up": 0, "down": 5}


async def test_finish_waits_for_a_contribution_of_a_member(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        answer = await order(r, "finish")
        assert answer["done"] == "this node leaves when its next contribution is committed"
        assert "leaves when" in (await status(r.context)).finishing
        assert not r.context.has_finished
        r.set_chain(tokens_by_peer={r.context.me: 16})
        assert r.context.has_finished
        await order(r, "resume")
        assert r.context.state.finishing is None
