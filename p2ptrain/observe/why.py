"""Explain what a node waits for: for whom, since when, until when, what happens then, and why.

    this node     brave-otter: standing by (members are still training: calm-fox)
    waits for     members are still training: calm-fox
    since         18:02:11, for 34 s
    until         18:03:05, in 20 s
    then          the members exchange without those that are late
    likely cause  calm-fox (…Xk3f9Q), last heard 71 s ago
    calm-fox      red, last heard 71 s ago, training (inner 12/100)

All facts are in the status. This module only chooses and words them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from p2ptrain.observe.states import duration
from p2ptrain.observe.status import MemberStatus, NodeStatus
from p2ptrain.observe.waits import clock_time

PEERS_MAX = 12
"""Maximum number of awaited peers that get a line each."""

CAUSE = "the likely cause is "
MARGIN = 14


def why_lines(status: NodeStatus, now: float) -> list[str]:
    """Return the answer of `status --why`. `now` is in Unix seconds."""
    return [f"{label:<{MARGIN}}{text}" for label, text in _facts(status, now)]


def _facts(status: NodeStatus, now: float) -> Iterator[tuple[str, str]]:
    yield "this node", f"{status.peer_name}: {status.state}"
    wait = status.waiting
    reason = str(wait.get("for", "")) if wait else ""
    if not reason:
        # A node that still starts has a sentence only.
        nothing = "nothing: the run does not wait for anything that this node knows of"
        yield "waits for", status.waits_for or nothing
    else:
        names = [_named(status, name) for name in _texts(wait.get("names"))]
        more = f" and {len(names) - PEERS_MAX} more" if names[PEERS_MAX:] else ""
        named = f": {', '.join(names[:PEERS_MAX])}{more}" if names else ""
        # Without names, the reason is often a fact, such as "all members are ready".
        yield ("waits for" if named else "because"), f"{reason}{named}"
        yield from _times(wait, now)
        yield "likely cause", _cause(status)
    for member in _awaited(status, _texts(wait.get("peers"))):
        if member.peer != status.peer:
            yield member.peer_name, _health(member)
    for caution in status.cautions:
        yield "warning", caution.words


def _named(status: NodeStatus, name: str) -> str:
    return f"{name} (this node)" if name == status.peer_name else name


def _times(wait: Mapping[str, object], now: float) -> Iterator[tuple[str, str]]:
    since, until = wait.get("since"), wait.get("until")
    if isinstance(since, int | float):
        yield "since", f"{clock_time(since)}, for {duration(now - since)}"
    if isinstance(until, int | float):
        left = f"in {duration(until - now)}" if until > now else "now due"
        yield "until", f"{clock_time(until)}, {left}"
    else:
        yield "until", "no time limit: for as long as it takes"
    if then := str(wait.get("then", "")):
        yield "then", then.removeprefix("then ")


def _cause(status: NodeStatus) -> str:
    if suspect := str(status.waiting.get("suspect", "")):
        return suspect.removeprefix(CAUSE)
    if all(member.peer == status.peer for member in status.members):
        return "no other peer is a member now: the others have left, or cannot reach this node"
    return "nothing unusual is known"


def _awaited(status: NodeStatus, peers: Sequence[str]) -> Iterator[MemberStatus]:
    """Yield the members that are waited for. If none are named, yield those that may be down."""
    for member in status.members:
        if member.peer in peers[:PEERS_MAX] or (not peers and member.health == "red"):
            yield member


def _health(member: MemberStatus) -> str:
    heard = member.heard_s_ago
    last = "never heard" if heard is None else f"last heard {duration(heard)} ago"
    return ", ".join(part for part in (member.health, last, member.state) if part)


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, Sequence) else []


def why_json(status: NodeStatus) -> dict[str, object]:
    """Return the facts of `status --why` for programs. `waiting` is {} if nothing is awaited."""
    awaited = _awaited(status, _texts(status.waiting.get("peers")))
    return {
        "state": status.state,
        "state_name": status.state_name,
        "waiting": dict(status.waiting),
        "peers": [
            {
                "peer": member.peer,
                "peer_name": member.peer_name,
                "health": member.health,
                "state": member.state,
                "heard_s_ago": member.heard_s_ago,
            }
            for member in awaited
        ],
        "warnings": [{"code": each.code, "what": each.what} for each in status.cautions],
    }
