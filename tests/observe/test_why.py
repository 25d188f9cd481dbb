"""`status --why` tells for whom the node waits, since when, until when, what then, and why."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.waits import clock_time
from p2ptrain.observe.why import why_json, why_lines
from tests.cli.watching.made import NOW, PEERS, made_status, waiting


def test_wait_is_told_with_the_state_of_each_awaited_peer() -> None:
    status = waiting(made_status(), 1)
    status = replace(status, cautions=(Caution("WAITING", "it is slow", "look"),))
    assert why_lines(status, NOW) == [
        "this node     sunny-koala: training (inner 37/100)",
        "waits for     members are still training: swift-moose",
        f"since         {clock_time(NOW - 34)}, for 34 s",
        f"until         {clock_time(NOW + 20)}, in 20 s",
        "then          the members exchange without those that are late",
        "likely cause  that one",
        "swift-moose   green, last heard 1 s ago, training (inner 37/100)",
        "warning       it is slow: look (p2ptrain explain WAITING)",
    ]
    told = why_json(status)
    assert told["waiting"] == status.waiting
    assert told["warnings"] == [{"code": "WAITING", "what": "it is slow"}]
    assert told["peers"] == [
        {
            "peer": PEERS[1],
            "peer_name": "swift-moose",
            "health": "green",
            "state": "training (inner 37/100)",
            "heard_s_ago": 1.0,
        }
    ]


def test_wait_without_limit_names_members_that_are_down() -> None:
    down = replace(made_status().members[2], health="red", heard_s_ago=None, state="")
    wait = {"for": "2 more participants needed", "peers": [], "names": [], "since": NOW - 400}
    status = replace(made_status(), waiting=wait, members=(*made_status().members[:2], down))
    assert why_lines(status, NOW)[1:] == [
        "because       2 more participants needed",
        f"since         {clock_time(NOW - 400)}, for 7 min",
        "until         no time limit: for as long as it takes",
        "likely cause  nothing unusual is known",
        f"{down.peer_name:<14}red, never heard",
    ]
    alone = replace(status, members=status.members[:1])
    assert why_lines(alone, NOW)[-1] == (
        "likely cause  no other peer is a member now: the others have left, or cannot reach this "
        "node"
    )
    late = replace(status, waiting={**wait, "until": NOW - 1, "peers": 7})
    assert f"until         {clock_time(NOW - 1)}, now due" in why_lines(late, NOW)


def test_node_that_does_not_wait_or_still_starts_says_so() -> None:
    nothing = "waits for     nothing: the run does not wait for anything that this node knows of"
    assert why_lines(made_status(), NOW)[1:] == [nothing]
    starting = replace(made_status(0), waits_for="the seed, next try in 15 s")
    assert why_lines(starting, NOW)[1:] == ["waits for     the seed, next try in 15 s"]
