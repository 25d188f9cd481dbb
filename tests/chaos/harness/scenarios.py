"""Faults of several nodes at once: a majority that is killed and restarted, and a crash of all
nodes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from p2ptrain.archive.home import Home
from tests.chaos.harness.crew import Crew, NotSeen
from tests.chaos.harness.verdict import chain_of

ALONE_S = 12.0
"""Seconds without the majority. The failure detector needs less time, so the two survivors know
that they are alone.
"""

BACK_S = 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a scenario. `seconds` is the time from the last restart to the next commit."""

    name: str
    seconds: float | None
    troubles: tuple[str, ...] = ()


def majority(crew: Crew) -> Told:
    """Kill three of five nodes and check that nothing is committed. Restart them and check that the
    run resumes.

    First wait until all five nodes are voters. With four voters, the two survivors could be a
    quorum if one of them were the first voter.
    """
    crew.wait_for(
        "the right to vote for all nodes",
        lambda: {node.seen.voters for node in crew.nodes} == {len(crew.nodes)},
        deadline_s=BACK_S,
    )
    lost, left = crew.nodes[:3], crew.nodes[3:]
    for node in lost:
        node.kill()
    killed_s = time.monotonic()
    ends_s = killed_s + ALONE_S
    crew.wait_for(
        "the end of the pause",
        lambda: time.monotonic() > ends_s,
        deadline_s=2 * ALONE_S,
    )
    # An entry that the killed nodes voted for can still be certified by votes already sent.
    late = [at_s for at_s in crew.commit_times(killed_s, left) if at_s > killed_s + 1.0]
    troubles = ("a minority of the voters committed",) if late else ()
    crew.start(*lost)
    seconds = _resumes(crew)
    return Told("majority lost and returned", seconds, troubles)


def everybody(crew: Crew) -> Told:
    """Kill all nodes at once. Check that they restart from their disks at their old height and
    continue.
    """
    for node in crew.nodes:
        node.signal(signal.SIGKILL)
    for node in crew.nodes:
        node.kill()
    heights = [len(chain_of(Home(node.home), crew.run)) for node in crew.nodes]
    ahead = crew.nodes[heights.index(max(heights))]
    restarted_s = time.monotonic()
    crew.start()
    seconds = _resumes(crew)
    next_height = min(it[1] for it in ahead.seen.decided if it[0] > restarted_s)
    troubles = list[str]()
    if next_height != max(heights) + 1:
        troubles.append(
            f"{ahead.name} had {max(heights)} entries, then decided height {next_height}"
        )
    return Told("all killed at once and restarted", seconds, tuple(troubles))


def _resumes(crew: Crew) -> float:
    restarted_s, step = time.monotonic(), crew.step
    at_s = crew.wait_for(
        "the next commit",
        lambda: crew.first_commit_after(restarted_s, crew.nodes),
        deadline_s=BACK_S,
    )
    crew.wait_for("a joint commit", lambda: crew.calm_since(step), deadline_s=BACK_S)
    crew.wait_for("equal snapshots", lambda: crew.same_state_since(step), deadline_s=BACK_S)
    return at_s - restarted_s


SCENARIOS: dict[str, Callable[[Crew], Told]] = {"majority": majority, "everybody": everybody}


def play(crew: Crew, name: str) -> Told:
    try:
        return SCENARIOS[name](crew)
    except NotSeen as exc:
        return Told(name, None, (str(exc),))
