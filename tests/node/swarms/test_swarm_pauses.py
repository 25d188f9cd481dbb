"""A member that is paused frees its device and holds up nobody; after the pause it contributes. A
member that finishes loses no work, and an organiser can end the run for all."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from p2ptrain.availability.wishes import Limits, Wishes
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.node.control.orders import ORDERS
from p2ptrain.node.gossip.amendment_gossip import amendments_changed
from p2ptrain.run import Amendment, SignedAmendment, load_amendments, save_amendments
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, swarm

ENDLESS = 10_000
ALONE = policy(participants_min=1, grace_s=20.0)
"""One member can go on alone. The others wait long for a member, so that its work is not late on a
busy machine: a paused member must not make them wait at all."""


async def order(s: Swarm, name: str, command: str, **arguments: object) -> dict[str, object]:
    return await ORDERS[command](s[name].context, request=arguments)


async def both_contribute(s: Swarm, steps: int = 2) -> None:
    await s.until(lambda: min(len(s.credits("ann")), len(s.credits("bob"))) >= steps)


async def test_others_go_on_without_a_paused_member(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        answer = await order(s, "bob", "pause")
        assert answer["paused"] == "you paused it, without an end"
        bob = s["bob"].context
        await s.until(lambda: not bob.trainer.up and bob.trainer.work is None)
        begun = bob.ledger.snapshot.step
        await s.go_on(6)
        assert [step for step in s.credits("bob") if step > begun] == []
        assert s["bob"].step >= begun + 6, "a paused member follows the run"
        assert bob.ledger.snapshot.is_member(bob.me)
        assert bob.shown.name == "paused"
        assert "waiting" not in bob.alerts
        record = s["ann"].context.peers.table.get(bob.me)
        assert record is not None
        assert record.heartbeat.trains is False
        assert record.heartbeat.state == "paused: you paused it, without an end"

        # An outer step takes a tenth of a second here, less than the start of a trainer. So the
        # other member is held in its outer step until the work is done, as in a longer step.
        starts, s["ann"].remote.held = s["bob"].remote.starts, True
        await s.until(lambda: s["ann"].remote.rests)
        await order(s, "bob", "resume")
        resumed = bob.ledger.snapshot.step
        await s.until(lambda: bob.trainer.work is not None)
        s["ann"].remote.held = False
        await s.until(lambda: any(step >= resumed for step in s.credits("bob")))
        first = min(step for step in s.credits("bob") if step >= resumed)
        assert first <= resumed + 1, "it contributes in the next outer step"
        assert s["bob"].remote.starts == starts + 1
        assert s["bob"].events("trainer-ended") == [], "a pause is no fault of the trainer"
        s.check_chain()


async def test_work_that_was_offered_before_a_pause_is_still_averaged(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        s["ann"].remote.held = True
        bob = s["bob"].context
        await s.until(lambda: s["ann"].remote.rests)
        step = s["ann"].context.ledger.snapshot.step
        # Bob's work of the outer step before it is kept until Bob trains again.
        await s.until(lambda: (work := bob.trainer.work) is not None and work.step == step)
        await order(s, "bob", "pause")
        await s.until(lambda: not bob.trainer.up)
        s["ann"].remote.held = False
        await s.until(lambda: s["bob"].step > step)
        assert step in s.credits("bob")
        s.check_chain()


async def test_pause_with_an_end_survives_a_restart(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        await order(s, "bob", "pause", for_s=3600.0)
        await s.until(lambda: not s["bob"].context.trainer.up)
        await s.stop("bob")
        await s.start("bob")
        bob = s["bob"].context
        pause = await s.until(lambda: bob.state.pause)
        assert pause is not None
        assert pause.until is not None
        assert abs(pause.until - time.time() - 3600.0) < 300.0
        await s.go_on(2)
        assert s["bob"].events("trainer-started") == []
        await order(s, "bob", "resume")
        await s.until(lambda: bob.trainer.up)


async def test_finishing_node_leaves_when_its_work_is_committed(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        bob = s["bob"]
        answer = await order(s, "bob", "finish")
        assert answer["done"] == "this node leaves when its next contribution is committed"
        with_bob = bob.context.me
        await s.until(bob.ended.is_set)
        assert bob.error is None
        assert [record["contributed"] for record in bob.events("finish")] == [True]
        assert len(bob.events("left")) == 1
        await s.go_on(3, "ann", "seed")
        assert not s["ann"].context.ledger.snapshot.is_member(with_bob)
        # Nothing is lost: each block that it trained on is part of a committed update.
        committed = {
            s.data(s.seed, block)
            for _, _, blocks in s.committed(s.seed)
            for block in blocks.get(bob.peer, ())
        }
        assert set(bob.remote.trained) == committed
        s.check_chain()


async def test_paused_node_finishes_at_once(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        bob = s["bob"]
        await order(s, "bob", "pause")
        await s.until(lambda: not bob.context.trainer.up and bob.context.trainer.work is None)
        answer = await order(s, "bob", "finish")
        assert answer["done"] == "this node has nothing to contribute now, so it leaves"
        await s.until(bob.ended.is_set)
        assert bob.error is None


async def test_used_up_daily_limit_pauses_a_node_and_stops_serving(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        bob = s["bob"].context
        await s.until(lambda: bob.state.usage.up and bob.state.usage.down)
        s["bob"].context.state.wishes = replace(Wishes(), limits=Limits(daily_bytes=10**6))
        bob.state.usage = replace(bob.state.usage, up=10**6)
        bob.changes.notify_all()
        await s.until(lambda: bob.state.pause is not None and not bob.trainer.up)
        assert bob.state.pause is not None
        assert bob.state.pause.kind == "daily"
        assert not bob.plane.serving.is_open
        await s.go_on(3)
        await order(s, "bob", "limit", daily=None)
        await s.until(lambda: bob.trainer.up)
        assert bob.plane.serving.is_open


async def test_organiser_ends_the_run_for_all(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), rules=ALONE, steps=ENDLESS) as s:
        await both_contribute(s)
        assert s.run is not None
        await s.stand_still()
        home, step = s.seed.home, s.seed.context.ledger.snapshot.step + 2
        wanted = Amendment(s.run.id, 1, step, stop="the loss no longer falls")
        made = SignedAmendment.publish(s.seed.identity, wanted, s.run)
        save_amendments(home.amendments, [*load_amendments(home.amendments, s.run), made])
        assert s.seed.context.amendments.reload()
        await amendments_changed(s.seed.context)
        s.stop_at(None)
        await s.until(lambda: all(node.context.state.stopped for node in s.up))
        await s.until(lambda: not any(node.context.trainer.up for node in s.up))
        ends = {
            (snapshot.step, snapshot.phase)
            for snapshot in (node.context.ledger.snapshot for node in s.up)
        }
        assert ends == {(step, Phase.ENDED)}
        assert {node.context.shown.name for node in s.up} == {"stopped"}
        told = "the organiser has ended the run (the loss no longer falls): "
        await s.until(lambda: any(line.startswith(told) for line in s["bob"].said))
        s.check_chain()
