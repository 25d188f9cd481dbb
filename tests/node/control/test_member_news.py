"""The organiser's log mentions members that join, leave or are lost, and agreed amendments. A seed
says when it has lost its vote, or asks for it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.ledger.chain.values import Terms
from p2ptrain.names import label
from p2ptrain.node.control.lost_vote_warning import LOST_VOTE, WARNING, notice_lost_vote
from p2ptrain.node.control.member_news import NAMED_MAX, QUIET_S, MemberNews
from p2ptrain.node.control.series.happenings import Happenings
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, NewRig, Rig, heartbeat, rig, settled, somebody

SMALL: dict[str, Any] = {"rules": policy(participants_min=1)}


def said_by(news: MemberNews, r: Rig) -> list[str]:
    lines = list[str]()
    news.print_news(r.context, lines.append)
    return lines


async def test_organiser_reads_who_joins_and_who_leaves(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        r.context.outer.step = 0
        news = MemberNews(r.context)
        r.set_chain(learners=(ANN.peer, BOB.peer))
        both = ", ".join(label(peer) for peer in sorted((ANN.peer, BOB.peer)))
        assert said_by(news, r) == [f"joined: {both}; 3 members now"]
        assert said_by(news, r) == []
        goodbye = heartbeat(r.run.id, leaving=True)
        r.context.peers.table.note_heartbeat(ANN.peer, goodbye, r.context.now())
        assert said_by(news, r) == []
        r.set_chain(learners=())
        assert said_by(news, r) == [
            f"left: {label(ANN.peer)}; 1 member now",
            f"dropped out without a goodbye: {label(BOB.peer)}; 1 member now",
        ]


async def test_organiser_reads_that_a_member_is_lost_and_heard_again(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        r.context.outer.step = 0
        r.set_chain(learners=(ANN.peer, BOB.peer))
        news = MemberNews(r.context)
        detector = r.context.peers.detector
        r.context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), r.context.now())
        detector.note_arrival(ANN.peer, r.context.now() - 3600)
        assert said_by(news, r) == [f"lost: no heartbeat arrives from {label(ANN.peer)}"]
        assert said_by(news, r) == []
        detector.note_arrival(ANN.peer, r.context.now())
        assert said_by(news, r) == [f"heard again: {label(ANN.peer)}"]


async def test_member_that_is_lost_again_and_again_is_told_once_in_ten_minutes(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    async with rig(tmp_path, clock=lambda: now[0], **SMALL) as r:
        r.context.outer.step = 0
        r.set_chain(learners=(ANN.peer,))
        news, told = MemberNews(r.context), list[str]()
        detector = r.context.peers.detector
        r.context.peers.table.note_heartbeat(ANN.peer, heartbeat(r.run.id), now[0])
        for _ in range(11):
            detector.note_arrival(ANN.peer, trio.current_time())
            told += said_by(news, r)
            detector.forget(ANN.peer)  # A peer that is not known counts as down.
            told += said_by(news, r)
            now[0] += QUIET_S / 10
        name = label(ANN.peer)
        lost, again = f"lost: no heartbeat arrives from {name}", f"heard again: {name}"
        assert told == [lost, again, lost]


async def test_organiser_reads_which_amendments_are_agreed(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        r.context.outer.step = 0
        news = MemberNews(r.context)
        r.set_chain(terms=(Terms(1, 40, r.run.manifest.genesis),))
        told = "the members agreed on amendment 1: from outer step 40 on"
        assert (said_by(news, r), said_by(news, r)) == ([told], [])


async def test_many_new_members_are_one_line(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        r.context.outer.step = 0
        news = MemberNews(r.context)
        r.set_chain(learners=tuple(somebody(number).peer for number in range(NAMED_MAX + 2)))
        [line] = said_by(news, r)
        assert line.endswith(" and 2 more; 8 members now")


async def test_node_that_catches_up_does_not_print_the_history(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        news = MemberNews(r.context)
        r.set_chain(learners=(ANN.peer,))
        assert said_by(news, r) == []
        r.context.outer.step = 0
        assert said_by(news, r) == []


@pytest.mark.parametrize("admission", ["open", "allowlist"])
async def test_seed_that_lost_its_vote_asks_for_it_or_says_so(
    admission: str, tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """A founder's seed that was stopped once never voted again, and said nothing about it. In an
    open run the members let it vote again (SPEC.md F4)."""
    r = await new_rig(tmp_path, seed=True, admission=admission, **SMALL)
    context = r.context
    context.outer.step = 0
    nursery.start_soon(notice_lost_vote, context)
    assert not context.wants_to_join()
    since = r.context.ledger.snapshot.since
    r.set_chain(voters=(ANN.peer,), since={ANN.peer: 0})
    context.changes.notify_all()
    assert context.wants_to_join() == (admission == "open")
    if admission == "allowlist":
        await settled(lambda: context.alerts.warnings.get(WARNING) == LOST_VOTE)
        r.set_chain(voters=(ANN.peer, context.me), since=since)
        context.changes.notify_all()
    await settled(lambda: WARNING not in context.alerts)


async def test_seed_says_once_that_its_vote_is_lost_and_once_that_it_is_back(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    """After each Commit θ was behind for a moment, and a new VOTE-LOST event followed."""
    r = await new_rig(tmp_path, seed=True, admission="allowlist", **SMALL)
    context, since = r.context, r.context.ledger.snapshot.since
    context.outer.step = 0
    happenings, told = Happenings(context), list[str]()
    nursery.start_soon(notice_lost_vote, context)

    async def look() -> None:
        context.changes.notify_all()
        await trio.testing.wait_all_tasks_blocked()
        told.extend(text for kind, _, text in happenings.new(context) if kind == "warning")

    async def let_steps_pass(first: int) -> None:
        for step in range(first, first + 3):
            r.set_chain(step=step)  # The ledger has the Commit, and θ lacks its update.
            await look()
            context.outer.step = step
            await look()

    with context.journal.followed(happenings.note):
        for turn in range(2):
            r.set_chain(voters=(ANN.peer,), since={ANN.peer: 0})
            await look()
            await let_steps_pass(1 + 6 * turn)
            r.set_chain(voters=(ANN.peer, context.me), since=since)
            await look()
            await let_steps_pass(4 + 6 * turn)
    lost = f"{LOST_VOTE.what[:1].upper()}{LOST_VOTE.what[1:]} (VOTE-LOST)."
    for event in ("vote-lost", "vote-back"):
        assert len(r.said(event)) == 2
    back = "This node is a member again: the warning VOTE-LOST no longer holds."
    assert told == [lost, back] * 2


async def test_stranger_that_serves_does_not_ask_to_join(tmp_path: Path) -> None:
    async with rig(tmp_path, seed=True, admission="open", founders=[ANN.peer], **SMALL) as r:
        r.context.outer.step = 0
        assert not r.context.wants_to_join()
