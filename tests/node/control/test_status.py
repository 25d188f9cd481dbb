"""The status of a node: its members, its digest of θ and m, its branch, its network and its newest
reduce."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.dataplane import Congestion, probe_congestion
from p2ptrain.ledger.chain.values import Branch, Commit, Participant
from p2ptrain.names import label, peer_name
from p2ptrain.node.consensus import branch_warning
from p2ptrain.node.control.status import brief_status, reduce_in_words, status
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import Leaving, Training
from p2ptrain.observe.status import status_lines
from p2ptrain.peers.reach_evidence import PortsReached
from p2ptrain.peers.reach_verdict import OwnPlace, verdict
from p2ptrain.ring import ReduceStatistics, Traffic
from p2ptrain.store import digest_of
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, heartbeat, opening, rig


async def test_digest_is_empty_before_a_snapshot_is_loaded(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        said = await status(r.context)
        assert (said.outer_step, said.state_digest, said.role) == (0, "", "voter")
        assert said.state_name == "starting"
        assert said.outer_steps == 4


async def test_status_says_how_others_reach_the_node(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert (await status(r.context)).reach.startswith("unknown: ")
        place = OwnPlace("192.168.1.5", 4201, 4202)
        reached = PortsReached(control=True, data=False)
        r.context.own_heartbeat.reach.verdict = verdict(reached, place)
        words = "half: control port reached, data port not: forward TCP 4202 too"
        assert f"reach     {words}" in status_lines(await status(r.context))


async def test_digest_is_computed_once_for_each_outer_step(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        outer = r.context.outer
        outer.step = 0
        first = (await status(r.context)).state_digest
        assert first == outer.vectors.digest()
        outer.vectors.theta[0] += 1
        # The outer step is still 0, so the digest is not computed again.
        assert (await status(r.context)).state_digest == first
        outer.moving = True
        outer.step = 1
        assert (await status(r.context)).state_digest == ""
        outer.moving = False
        assert (await status(r.context)).state_digest == outer.vectors.digest() != first


async def test_digest_taken_while_theta_changed_is_not_shown(tmp_path: Path) -> None:
    async with rig(tmp_path) as r, trio.open_nursery() as nursery:
        outer = r.context.outer
        outer.step = 0
        shown: list[str] = []

        async def ask() -> None:
            shown.append((await status(r.context)).state_digest)

        with outer.vectors._changing:
            nursery.start_soon(ask)
            await trio.lowlevel.checkpoint()
            outer.moving = True
        await r.context.changes.wait(at_most_s=0.05)
        while not shown:
            await trio.lowlevel.checkpoint()
        assert shown == [""]


async def test_status_combines_the_ledger_and_the_heartbeats_of_members(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, rules=policy(participants_min=1)) as r:
        context = r.context
        ours, theirs = Participant(context.me, 32, 2), Participant(ANN.peer, 16, 1)
        r.decide(replace(opening(context.ledger.snapshot), learners=(ANN.peer,)))
        r.decide(opening(context.ledger.snapshot, ours, theirs, learners=[ANN.peer]))
        r.decide(Commit(0, 0, digest_of(b"update")))
        context.peers.table.note_heartbeat(
            ANN.peer, heartbeat(r.run.id, tokens_per_s=7), context.now()
        )
        context.peers.detector.note_arrival(ANN.peer, context.now())
        context.state.set_state(Training(1, 2))
        r.network.round_trips = {ANN.peer: 0.0417, context.me: 1.0}
        said = await status(context)
        me, ann = said.members
        assert (me.rtt_ms, ann.rtt_ms) == (None, 41.7)
        assert (me.role, me.tokens, me.health, me.state) == (
            "voter",
            32,
            "green",
            "training (inner 1/2)",
        )
        assert (ann.role, ann.tokens, ann.health, ann.tokens_per_s) == ("learner", 16, "green", 7)
        assert (said.tokens, said.tokens_total) == (32, 48)


async def test_member_that_was_never_heard_is_shown_in_red(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.decide(replace(opening(r.context.ledger.snapshot), learners=(ANN.peer,)))
        ann = (await status(r.context)).members[1]
        assert (ann.health, ann.heard_s_ago, ann.state, ann.rtt_ms) == ("red", None, "", None)


async def test_leaving_node_shows_leaving_until_it_ends(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.context.state.leaving = True
        r.context.state.set_state(Leaving())
        r.context.state.set_state(Training(1, 2))
        assert (await status(r.context)).state_name == "leaving"


async def test_branch_is_shown_with_the_missing_voters_while_it_lasts(tmp_path: Path) -> None:
    rules = policy(quorum_loss="branch", branch_after_s=60.0)
    async with rig(tmp_path, rules=rules, founders=[ANN.peer, BOB.peer, CAI.peer]) as r:
        branch_warning.warn(r.context)
        assert "branch" not in r.context.alerts
        r.decide(Branch(0, (ANN.peer,)))
        branch_warning.warn(r.context)
        branch_warning.warn(r.context)
        gone = f"{label(BOB.peer)}, {label(CAI.peer)}"
        words = f"on a branch since outer step 0, without {gone}; 2 of 3 voters are gone"
        assert r.context.alerts.warnings["branch"] == Caution("BRANCH", words)
        assert [each["what"] for each in r.said("branch")] == [words]
        shown = await status(r.context)
        assert shown.branch.startswith(f"on a branch since outer step 0, without {gone}")
        assert f"branch    {shown.branch}" in status_lines(shown)


async def test_congestion_control_is_reported_at_start_and_in_status(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        found = probe_congestion()
        (told,) = r.said("sending")
        assert (told["control"], told["refusal"]) == (found.control, found.refusal)
        shown = await status(r.context)
        assert (shown.congestion_control, shown.sending) == (found.control, found.words)
        assert f"sending   {found.words}" in status_lines(shown)


async def test_status_shows_a_missing_bbr_and_the_upload_limit(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        r.plug(congestion=Congestion("cubic", "Operation not permitted"))
        r.configure(limit_up_bytes_per_s=1_000_000)
        shown = (await status(r.context)).to_json()
        assert (shown["congestion_control"], shown["congestion_refusal"]) == (
            "cubic",
            "Operation not permitted",
        )
        assert shown["limit_up_bytes_per_s"] == 1_000_000
        assert shown["sending"] == (
            "congestion control cubic; bbr is not available: Operation not permitted; "
            "at most 8 Mbit/s"
        )


def test_reduce_is_described_with_its_slowest_path() -> None:
    traffic = (
        Traffic(ANN.peer, 3_000_000, 1_000_000, 0.5),
        Traffic(BOB.peer, 1_000_000, 3_000_000, 1.0),
    )
    report = ReduceStatistics(1.5, 0.9, 0.2, 0.4, 0.9, 0.31, traffic)
    assert reduce_in_words(report) == (
        "the last took 1.50 s, including 0.90 s for the sum; 4.0 MB up, 4.0 MB down, "
        f"0.31 s of CPU; slowest connection to {peer_name(BOB.peer)}, 8 Mbit/s"
    )
    facts = report.facts()
    assert facts["sent_bytes_per_s_by_peer"] == {ANN.peer: 6_000_000, BOB.peer: 1_000_000}
    assert (facts["gather_s"], facts["received_bytes"]) == (pytest.approx(0.6), 4_000_000)
    assert reduce_in_words(ReduceStatistics(1.5, 1.5, 0.2, 0, 0, 0.31, ())).endswith(
        "0.31 s of CPU"
    )


async def test_page_gets_the_digest_only_if_it_is_known(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        outer = r.context.outer
        outer.step = 0
        assert brief_status(r.context).state_digest == ""
        whole = await status(r.context)
        assert whole.state_digest == outer.vectors.digest()
        assert brief_status(r.context).state_digest == whole.state_digest
        outer.step = 1
        assert brief_status(r.context).state_digest == ""


async def test_status_counts_the_copies_of_the_newest_snapshots(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        me, core = r.context.me, r.context.ledger.core
        r.set_chain(voters=(me, ANN.peer, BOB.peer), since={})
        one, two, three = (digest_of(bytes([number])) for number in range(3))
        core.reports.snapshots.update({me: {2: one, 4: two}, ANN.peer: {2: one, 4: two, 6: three}})
        core.reports.snapshots[CAI.peer] = {6: three}  # Cai is not a member.
        core.reports.snapshots[BOB.peer] = {4: two}
        for peer in (ANN.peer, BOB.peer):
            r.context.peers.detector.watch(peer, r.context.now())
        r.context.peers.detector.hint_lost(BOB.peer, r.context.now())
        assert (await status(r.context)).snapshots == (
            {"step": 6, "digest": three, "copies": 1},
            {"step": 4, "digest": two, "copies": 2},
            {"step": 2, "digest": one, "copies": 1},
        )
