"""A node that does not hear from a quorum of voters tells its user: nothing can be agreed on until
it does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio

from p2ptrain.ids import Digest, PeerId
from p2ptrain.names import label
from p2ptrain.node.control.isolation_warning import in_words, notice_isolation, unreachable_voters
from p2ptrain.node.control.status import status
from p2ptrain.observe.states import Serving, StandingBy, Training
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, rig, settled

THREE: dict[str, Any] = {
    "founders": [ANN.peer, BOB.peer, CAI.peer],
    "rules": policy(participants_min=1),
}


def hear(r: Rig, *peers: PeerId, **said: object) -> None:
    for peer in peers:
        r.context.peers.table.note_heartbeat(peer, heartbeat(r.run.id, **said), 0.0)
        r.context.peers.detector.note_arrival(peer, r.context.now())


async def test_voters_on_another_branch_count_as_unreachable(tmp_path: Path) -> None:
    async with rig(tmp_path, **THREE) as r:
        assert unreachable_voters(r.context) == (ANN.peer, BOB.peer, CAI.peer)
        hear(r, ANN.peer)
        assert unreachable_voters(r.context) == (BOB.peer, CAI.peer)
        hear(r, BOB.peer, line=Digest("b" * 64))
        assert unreachable_voters(r.context) == (BOB.peer, CAI.peer)
        hear(r, CAI.peer)
        assert unreachable_voters(r.context) == ()


async def test_waiting_node_is_shown_as_isolated_until_it_hears_a_quorum(
    tmp_path: Path, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    r = await new_rig(tmp_path, **THREE)
    hear(r, ANN.peer)
    nursery.start_soon(partial(notice_isolation, r.context, patience_s=0.01, look_s=0.01))
    await settled(lambda: r.context.state.isolated != "")
    words = f"2 of 3 voters cannot be heard: {label(BOB.peer)}, {label(CAI.peer)}"
    shown = {}
    for state in (StandingBy("for the other voters"), Serving(), Training(1, 2)):
        r.context.state.current = state
        said = await status(r.context)
        shown[state.name] = (said.state_name, said.state)
    assert shown == {
        "standing by": ("isolated", f"isolated: {words}"),
        "serving": ("isolated", f"isolated: {words}"),
        "training": ("training", "training (inner 1/2)"),
    }
    assert [each.code for each in r.context.alerts.warnings.values()] == ["ISOLATED"]
    hear(r, BOB.peer)
    await settled(lambda: r.context.state.isolated == "")
    assert r.context.alerts.warnings == {}
    assert [each["reason"] for each in r.said("isolated")] == [words, ""]


async def test_warning_names_unheard_voters_that_are_not_on_the_allowlist(
    tmp_path: Path,
) -> None:
    """Voters that are not on the allowlist cannot come back, so the user must know about them.
    Founders are always on the list, but a voter that replaced a founder can be removed from the
    list."""
    async with rig(tmp_path, allowed=[ANN.peer], rules=policy(participants_min=1)) as r:
        words = in_words(r.context, (ANN.peer, BOB.peer))
        assert f"cannot be heard: {label(ANN.peer)}, {label(BOB.peer)}; not heard because" in words
        assert words.endswith(f"not on the allowlist: {label(BOB.peer)}")
