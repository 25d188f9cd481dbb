"""If no quorum can be heard, nothing can be agreed, and the node says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2ptrain.ids import Digest, PeerId
from p2ptrain.names import label
from p2ptrain.node.control import isolation_warning
from p2ptrain.node.control.isolation_warning import in_words, notice_isolation, unheard
from p2ptrain.node.control.status import status
from p2ptrain.observe.states import Serving, StandingBy, Training
from p2ptrain.testing.published import policy
from tests.node.rig import ANN, BOB, CAI, NewRig, Rig, heartbeat, rig, settled

THREE = {"founders": [ANN.peer, BOB.peer, CAI.peer], "rules": policy(participants_min=1)}


def hear(r: Rig, *peers: PeerId, **said: object) -> None:
    for peer in peers:
        r.parts.peers.note_heartbeat(peer, heartbeat(r.run.id, **said), 0.0)
        r.parts.detector.note_arrival(peer, r.parts.now())


async def test_quorum_must_be_heard_on_this_line(tmp_path: Path) -> None:
    async with rig(tmp_path, **THREE) as r:
        assert unheard(r.parts) == (ANN.peer, BOB.peer, CAI.peer)
        hear(r, ANN.peer)
        assert unheard(r.parts) == (BOB.peer, CAI.peer)
        hear(r, BOB.peer, line=Digest("b" * 64))
        assert unheard(r.parts) == (BOB.peer, CAI.peer)
        hear(r, CAI.peer)
        assert unheard(r.parts) == ()


async def test_waiting_node_warns_until_a_quorum_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_rig: NewRig, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(isolation_warning, "PATIENCE_S", 0.01)
    monkeypatch.setattr(isolation_warning, "LOOK_S", 0.01)
    r = await new_rig(tmp_path, **THREE)
    hear(r, ANN.peer)
    nursery.start_soon(notice_isolation, r.parts)
    await settled(lambda: r.parts.standing.isolated != "")
    words = f"2 of 3 voters cannot be heard: {label(BOB.peer)}, {label(CAI.peer)}"
    shown = {}
    for state in (StandingBy("for the others"), Serving(), Training(1, 2)):
        r.parts.standing.state = state
        said = await status(r.parts)
        shown[state.name] = (said.state_name, said.state)
    assert shown == {
        "standing by": ("isolated", f"isolated: {words}"),
        "serving": ("isolated", f"isolated: {words}"),
        "training": ("training", "training (inner 1/2)"),
    }
    assert [each.code for each in r.parts.standing.warnings.values()] == ["ISOLATED"]
    hear(r, BOB.peer)
    await settled(lambda: r.parts.standing.isolated == "")
    assert r.parts.standing.warnings == {}
    assert [each["reason"] for each in r.said("isolated")] == [words, ""]


async def test_voters_off_the_allowlist_are_named(
    tmp_path: Path,
) -> None:
    """They will not come back. Founders are always on the list, but a voter that replaced one may
    not be.
    """
    async with rig(tmp_path, allowed=[ANN.peer], rules=policy(participants_min=1)) as r:
        words = in_words(r.parts, (ANN.peer, BOB.peer))
        assert f"cannot be heard: {label(ANN.peer)}, {label(BOB.peer)}; not heard because" in words
        assert words.endswith(f"not on the allowlist: {label(BOB.peer)}")
