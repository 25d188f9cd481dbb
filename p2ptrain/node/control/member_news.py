"""Tell the organiser who joins, leaves or is lost, and which amendments the members agree on.

An organiser and a seed's owner watch over a run, so their nodes print these lines. Other nodes
print them with `--verbose`. In a large run many members change at once, so a line names only some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState, Phase
from p2ptrain.ledger.chain.values import Terms
from p2ptrain.names import label
from p2ptrain.node.state.context import Context

NAMED_MAX = 5
"""Maximum number of peers that one line names."""

BEHIND_MAX = 1
"""Number of outer steps by which θ may be behind the ledger while changes are told. A node that is
about to apply an update is one step behind; one that catches up is more."""


QUIET_S = 600.0
"""Seconds in which a peer is called lost once at most. A peer on an overloaded machine is lost and
heard again several times a minute, and would hide all other news."""


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A change among the members. `kind` is a kind of event of the series, and `what` says with
    names what happened to `peers`. An amendment concerns no peers."""

    kind: str
    peers: tuple[PeerId, ...]
    what: str
    line: str


class MemberChanges:
    """Compares the ledger's state and the heartbeats with those at the last call."""

    def __init__(self, context: Context) -> None:
        state = context.ledger.snapshot
        self._members = frozenset(state.members)
        self._terms = state.terms
        self._lost = frozenset[PeerId]()
        self._told_s: dict[PeerId, float] = {}

    def new(self, context: Context) -> list[MemberChange]:
        """Return the changes since the last call. A node that catches up would return the whole
        history of the run, so it returns nothing."""
        state = context.ledger.snapshot
        step = context.outer.step
        if step is None or state.step - step > BEHIND_MAX or state.phase is Phase.ENDED:
            self._members, self._terms = frozenset(state.members), state.terms
            return []
        return [
            *self._of_members(context, state),
            *self._of_lost(context, state),
            *self._of_amendments(context, state.terms),
        ]

    def _of_members(self, context: Context, state: LedgerState) -> Iterator[MemberChange]:
        others = frozenset(state.members) - {context.me}
        joined, gone = others - self._members, self._members - others - {context.me}
        left = frozenset(peer for peer in gone if _said_goodbye(context, peer))
        said = (
            ("join", joined, "joined"),
            ("leave", left, "left"),
            ("lost", gone - left, "dropped out without a goodbye"),
        )
        total = counted(len(state.members), "member")
        for kind, peers, what in said:
            if peers:
                line = f"{what}: {_names(peers)}; {total} now"
                yield MemberChange(kind, tuple(sorted(peers)), what, line)
        self._members = frozenset(state.members)

    def _of_lost(self, context: Context, state: LedgerState) -> Iterator[MemberChange]:
        others = frozenset(state.members) - {context.me}
        # A peer that was never heard is not lost: this node may have just started.
        heard = {peer for peer in others if context.peers.table.get(peer) is not None}
        down = frozenset(filter(context.peers.is_down, heard))
        lost = frozenset(peer for peer in down if not _said_goodbye(context, peer))
        now, before = context.now(), self._told_s
        quiet = {peer for peer in others if now < before.get(peer, -QUIET_S) + QUIET_S}
        if new := lost - self._lost - quiet:
            line = f"lost: no heartbeat arrives from {_names(new)}"
            yield MemberChange("lost", tuple(sorted(new)), "no longer sends heartbeats", line)
        if back := (self._lost - lost) & others:
            what = "sends heartbeats again"
            yield MemberChange("lost", tuple(sorted(back)), what, f"heard again: {_names(back)}")
        self._lost = (self._lost & lost) | new
        self._told_s = {**before, **dict.fromkeys(new, now)}
        self._told_s = {peer: at for peer, at in self._told_s.items() if peer in others}

    def _of_amendments(self, context: Context, terms: tuple[Terms, ...]) -> Iterator[MemberChange]:
        for each in terms:
            if each in self._terms:
                continue
            found = context.amendments.get(each.digest)
            what = f"from outer step {each.step} on" if found is None else found.amendment.words
            line = f"the members agreed on amendment {each.number}: {what}"
            yield MemberChange("amendment", (), what, line)
        self._terms = terms


class MemberNews:
    """Prints the changes on the nodes that want them."""

    def __init__(self, context: Context) -> None:
        self._changes = MemberChanges(context)
        self._wanted = (
            context.config.seed
            or context.config.verbose
            or context.me == context.manifest.organiser
        )

    def print_news(self, context: Context, print_line: Callable[[str], None]) -> None:
        """Print what has changed since the last call."""
        for change in self._changes.new(context) if self._wanted else ():
            print_line(change.line)


def _said_goodbye(context: Context, peer: PeerId) -> bool:
    record = context.peers.table.get(peer)
    return record is not None and record.heartbeat.leaving


def _names(peers: Iterable[PeerId]) -> str:
    ordered = sorted(peers)
    more = f" and {len(ordered) - NAMED_MAX} more" if ordered[NAMED_MAX:] else ""
    return ", ".join(label(peer) for peer in ordered[:NAMED_MAX]) + more
