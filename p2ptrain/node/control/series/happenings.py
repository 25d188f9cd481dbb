"""The events of the run as this node sees them, each in one plain sentence, for its series."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.names import label
from p2ptrain.node.control.member_news import BEHIND_MAX, MemberChanges
from p2ptrain.node.control.series.closed_steps import ClosedStep
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

Happening = tuple[str, str, str]
"""The kind of an event, the peer that it is about or "", and a sentence."""

NAMED_MAX = 8
"""Maximum number of peers that get an event each, if the same thing happens to many at once."""

NOTED_MAX = 256
OTHERWISE_TOLD = frozenset({"waiting", "branch"})
"""Warnings that are events of a kind of their own."""


class Happenings:
    """Compares the node's state with that at the last call, and reads the journal's records."""

    def __init__(self, context: Context) -> None:
        self._me = context.me
        self._changes = MemberChanges(context)
        self._noted: deque[Happening] = deque(maxlen=NOTED_MAX)
        self._warned = frozenset[Caution]()
        self._snapshot = context.ledger.snapshot.snapshot
        self._ended = context.ledger.snapshot.phase is Phase.ENDED
        self._validated: tuple[int, float | None] | None = None

    def note(self, record: Mapping[str, object]) -> None:
        """Take in a record of the journal."""
        match record.get("event"), record.get("kind"):
            case "waiting", _:
                self._noted.append(("stall", "", f"This node is {record.get('why')}."))
            case "paused", _:
                self._noted.append(
                    ("pause", self._me, f"This node paused: {record.get('reason')}.")
                )
            case "resumed", _:
                self._noted.append(("resume", self._me, "This node trains again."))
            case "branch", _:
                what = f"This node is on a branch: {record.get('what')}."
                self._noted.append(("branch", "", what))
            case "rejoining", _:
                at = record.get("parted_at")
                what = f"Another chain outranks this node's, which drops its entries after {at}."
                self._noted.append(("heal", "", what))
            case "vote-back", _:
                what = "This node is a member again: the warning VOTE-LOST no longer holds."
                self._noted.append(("warning", self._me, what))
            case "run-stopped", _:
                what = f"The organiser has ended the run: {record.get('reason')}."
                self._noted.append(("end", "", what))
            case "decided", "heal":
                self._noted.append(("heal", "", "The voters of a branch returned to the run."))

    def new(self, context: Context) -> Iterator[Happening]:
        """Yield what has happened since the last call."""
        while self._noted:
            yield self._noted.popleft()
        for change in self._changes.new(context):
            if not change.peers:
                yield change.kind, "", f"{change.line[:1].upper()}{change.line[1:]}."
            for peer in change.peers[:NAMED_MAX]:
                yield change.kind, peer, f"{label(peer)} {change.what}."
            if change.peers[NAMED_MAX:]:
                more = len(change.peers) - NAMED_MAX
                yield change.kind, "", f"{more} more peers: {change.what}."
        yield from self._of_warnings(context)
        yield from self._of_snapshot(context)
        yield from self._of_validation(context)
        yield from self._of_end(context)

    def _of_warnings(self, context: Context) -> Iterator[Happening]:
        shown = {
            caution
            for name, caution in context.alerts.warnings.items()
            if name not in OTHERWISE_TOLD
        }
        for caution in sorted(shown - self._warned, key=lambda each: each.what):
            yield "warning", "", f"{caution.what[:1].upper()}{caution.what[1:]} ({caution.code})."
        self._warned = frozenset(shown)

    def _of_snapshot(self, context: Context) -> Iterator[Happening]:
        snapshot = context.ledger.snapshot.snapshot
        if snapshot != self._snapshot and snapshot is not None and self._snapshot_is_news(context):
            what = f"The members certified a snapshot of outer step {snapshot.step}."
            yield "snapshot", "", what
        self._snapshot = snapshot

    def _snapshot_is_news(self, context: Context) -> bool:
        """Return whether this node is not catching up, so that the snapshot is a new one."""
        step = context.outer.step
        return step is not None and context.ledger.snapshot.step - step <= BEHIND_MAX

    def _of_validation(self, context: Context) -> Iterator[Happening]:
        newest = context.trainer.validation.newest
        told = None if newest is None else (newest.step, newest.loss)
        if newest is not None and newest.loss is not None and told != self._validated:
            if self._validated is None or self._validated[0] != newest.step:
                loss = f"a loss of {newest.loss:.3f} on held-out data"
                yield "validation", "", f"The weights of outer step {newest.step} have {loss}."
            self._validated = told

    def _of_end(self, context: Context) -> Iterator[Happening]:
        state = context.ledger.snapshot
        ended = state.phase is Phase.ENDED
        if ended and not self._ended:
            tokens = f"{state.tokens:,} tokens"
            yield "end", "", f"The run is complete: {state.step} outer steps, {tokens}."
        self._ended = ended


def about(closed: ClosedStep) -> Iterator[Happening]:
    """Yield what was unusual about an outer step."""
    if closed.skipped:
        yield "skip", "", f"The members skipped outer step {closed.step}: its exchanges failed."
    elif closed.attempt:
        tried = f"attempt {closed.attempt + 1} succeeded"
        yield "retry", "", f"The exchange of outer step {closed.step} was repeated: {tried}."
