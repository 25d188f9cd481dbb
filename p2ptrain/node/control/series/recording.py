"""Record the run's history in `series.db`: each outer step, each peer in it, and events.

The ledger says which outer steps have ended and how many tokens of each peer are in them. The
node's journal says what this node did (`StepActivity`), and heartbeats what other members report
about themselves. A row is written when its step ends, and completed when reports arrive. This task
only reads and hands rows to a thread: neither a slow nor a lost disk can delay the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import time

import trio

from p2ptrain.ids import PeerId
from p2ptrain.node.control.series.closed_steps import ClosedStep, ClosedSteps
from p2ptrain.node.control.series.happenings import Happenings, about
from p2ptrain.node.control.series.learning import learn_history
from p2ptrain.node.control.series.learning_events import learn_events
from p2ptrain.node.control.series.own_report import report_of, row_of
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.series import (
    EventRow,
    PeerStepRow,
    SampleRow,
    SeriesReader,
    SeriesRecorder,
    SeriesUnavailable,
    StepRow,
)
from p2ptrain.observe.series.rows import TEXT_CHARACTERS_MAX
from p2ptrain.observe.series.step_activity import StepActivity, StepFacts
from p2ptrain.peers.series.step_report import StepReport

LOOK_S = 5.0
PAUSE_S, PAUSE_EACH_S = 0.1, 0.001
WARNING = "series"

RECENT_MAX = 64
"""Number of newest outer steps whose rows reports may still complete. A report that is later than
that comes from a peer that was away."""

FACTS_MAX = 256
BATCH = 64
ROOM_MIN = 2048
ROOM_LOOK_S = 0.1

BEHIND_HEIGHTS = 2
"""Number of entries that a node may lack at a moment without being behind: a heartbeat that names a
new entry can arrive before the entry does."""


async def record_series(context: Context, *, wall: Callable[[], float] = time) -> None:
    """Record the history of the run until cancelled. `wall` is a Unix clock."""
    known = await trio.to_thread.run_sync(_newest_step, context)
    recorder = SeriesRecorder(context.home.series, context.run)
    try:
        book = SeriesBook(context, recorder, wall, known)
        with context.journal.followed(book.note):
            await book.record_known()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(learn_history, context, recorder)
                nursery.start_soon(learn_events, context, recorder)
                while True:
                    book.look()
                    await context.changes.wait(at_most_s=LOOK_S)
                    await trio.sleep(_pause_s(context))
    finally:
        context.state.own_report = None
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(recorder.close)


def _pause_s(context: Context) -> float:
    """Return the seconds between two looks. Each look goes through all members, so in a run of a
    thousand members there is one look per second."""
    return max(PAUSE_S, PAUSE_EACH_S * len(context.ledger.snapshot.members))


def _newest_step(context: Context) -> int:
    """Return the newest outer step in the series, if there is one."""
    try:
        with SeriesReader(context.home.series) as reader:
            return reader.newest_step() if reader.run() == context.run else 0
    except SeriesUnavailable:
        return 0


class SeriesBook:
    """Writes the rows of one life of a node."""

    def __init__(
        self, context: Context, recorder: SeriesRecorder, wall: Callable[[], float], known: int
    ) -> None:
        self._context = context
        self._recorder = recorder
        self._wall = wall
        self._steps = ClosedSteps(context.ledger.kept)
        self._newest = min(known, context.ledger.snapshot.step)
        self._activity = StepActivity()
        self._facts: deque[StepFacts] = deque(maxlen=FACTS_MAX)
        self._happenings = Happenings(context)
        self._recent: dict[int, dict[PeerId, tuple[int, StepReport | None]]] = {}
        self._held_out: tuple[int, float | None] = (0, None)
        self._told = ""
        self._sampled = frozenset[tuple[int, int]]()
        self._was_current = self._is_current()
        """Whether this node knew at the last look what the others knew."""
        recorder.forget_after(context.ledger.snapshot.step)

    def note(self, record: Mapping[str, object]) -> None:
        """Take in a record of the journal. The task that finishes an outer step writes the record
        just before it sends a heartbeat, so this makes the report that the heartbeat contains."""
        self._happenings.note(record)
        facts = self._activity.note(record)
        if facts is not None:
            self._facts.append(facts)
            if self._context.trains:
                self._context.state.own_report = report_of(facts)

    async def record_known(self) -> None:
        """Record the outer steps in the ledger that the series lacks, for instance because the
        file was lost. The times of their ends are not known."""
        rows: list[StepRow | PeerStepRow] = []
        for closed in list(self._steps.new()):
            if closed.step > self._newest:
                rows += self._rows(closed, None)
            if len(rows) >= BATCH:
                self._recorder.record(*rows)
                rows = []
                while self._recorder.room < ROOM_MIN:
                    await trio.sleep(ROOM_LOOK_S)
        self._recorder.record(*rows)
        self._newest = max(self._newest, self._context.ledger.snapshot.step)

    def look(self) -> None:
        """Record what is new."""
        new = list(self._steps.new())
        for closed in new:
            anew = self._was_current and closed is new[-1]
            self._record_step(closed, self._wall() if anew else None)
        self._was_current = self._is_current()
        while self._facts:
            self._record_facts(self._facts.popleft())
        self._take_reports()
        self._record_held_out()
        self._record_samples()
        for kind, peer, text in self._happenings.new(self._context):
            self._record_event(kind, peer, text, self._newest)
        self._warn()

    def _record_step(self, closed: ClosedStep, time_s: float | None) -> None:
        """Record an outer step that ended at `time_s`, or some unknown time ago."""
        self._recorder.record(*self._rows(closed, time_s))
        self._newest = closed.step
        tokens = {each.peer: each.tokens for each in closed.participants}
        self._recent[closed.step] = {peer: (tokens.get(peer, 0), None) for peer in closed.members}
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        for kind, peer, text in () if time_s is None else about(closed):
            self._record_event(kind, peer, text, closed.step)

    def _rows(self, closed: ClosedStep, time_s: float | None) -> list[StepRow | PeerStepRow]:
        tokens = {each.peer: each.tokens for each in closed.participants}
        members = dict.fromkeys((*closed.members, *tokens))
        step = StepRow(
            step=closed.step,
            time=time_s,
            attempt=closed.attempt,
            skipped=int(closed.skipped),
            members=len(closed.members),
            participants=len(tokens),
            tokens=closed.tokens,
            tokens_total=closed.tokens_total,
        )
        return [
            step,
            *(
                PeerStepRow(
                    closed.step,
                    peer,
                    tokens=tokens.get(peer, 0),
                    contributed=int(tokens.get(peer, 0) > 0),
                )
                for peer in members
            ),
        ]

    def _is_current(self) -> bool:
        """Return whether this node knows what the others know, so that the next entry is news. A
        newcomer that has not heard anybody yet is not current, but a lone member is."""
        state = self._context.ledger.snapshot
        beats = (record.heartbeat for record in self._context.peers.counted())
        heights = [beat.height for beat in beats if beat.line == state.line]
        if not heights:
            return state.is_member(self._context.me)
        return max(heights) <= state.height + BEHIND_HEIGHTS

    def _record_facts(self, facts: StepFacts) -> None:
        if facts.step not in self._recent:
            return
        self._recorder.record(
            StepRow(
                facts.step,
                learning_rate=facts.learning_rate,
                exchange_ms=facts.exchange_ms,
                bytes_up=facts.bytes_up,
                bytes_down=facts.bytes_down,
            ),
            *(PeerStepRow(facts.step, peer, path=path) for peer, path in facts.paths.items()),
        )
        if self._context.trains:
            self._record_report(self._context.me, report_of(facts))

    def _take_reports(self) -> None:
        for peer, report in list(self._context.state.arrived.items()):
            if report.step > self._newest:
                continue  # The ledger here does not have this step yet.
            del self._context.state.arrived[peer]
            self._record_report(peer, report)

    def _record_report(self, peer: PeerId, report: StepReport) -> None:
        known = self._recent.get(report.step, {}).get(peer)
        if known is None or known[1] is not None:
            return  # The peer was no member then, the step is old, or the report is a repetition.
        members = self._recent[report.step]
        members[peer] = (known[0], report)
        told = [(tokens, each) for tokens, each in members.values() if each is not None]
        self._recorder.record(
            StepRow(
                report.step,
                loss=_mean([(tokens, each.loss) for tokens, each in told]),
                gradient_norm=_mean([(tokens, each.gradient_norm) for tokens, each in told]),
            ),
            row_of(peer, report),
        )

    def _record_held_out(self) -> None:
        newest = self._context.trainer.validation.newest
        if newest is not None and (newest.step, newest.loss) != self._held_out:
            self._held_out = (newest.step, newest.loss)
            if newest.step in self._recent and newest.loss is not None:
                self._recorder.record(StepRow(newest.step, held_out=newest.loss))

    def _record_samples(self) -> None:
        kept = self._context.trainer.samples.kept
        for (step, prompt), each in kept.items():
            if (step, prompt) not in self._sampled:
                text = each.sample.text[:TEXT_CHARACTERS_MAX]
                self._recorder.record(SampleRow(step, prompt, each.signer, text))
        self._sampled = frozenset(kept)

    def _record_event(self, kind: str, peer: str, text: str, step: int) -> None:
        whole = text[:TEXT_CHARACTERS_MAX]
        self._recorder.record(EventRow(self._wall(), step, kind, peer, whole))

    def _warn(self) -> None:
        if self._recorder.notice and self._recorder.notice != self._told:
            self._told = self._recorder.notice
            self._context.journal.write("series-put-aside", what=self._told)
            what = f"the history of the run begins anew: {self._told}"
            self._context.alerts.show("series-aside", Caution("SERIES", what))
        if self._recorder.trouble:
            what = f"the history of the run is not being recorded: {self._recorder.trouble}"
            do = "the run goes on without it; check the disk of this node's home"
            self._context.alerts.show(WARNING, Caution("SERIES", what, do))
        else:
            self._context.alerts.clear(WARNING)


def _mean(values: list[tuple[int, float | None]]) -> float | None:
    """Return the mean, weighted by tokens if any peer has some; None if no value is known."""
    known = [(tokens, value) for tokens, value in values if value is not None]
    weight = sum(tokens for tokens, _ in known)
    if not known:
        return None
    if not weight:
        return sum(value for _, value in known) / len(known)
    return sum(tokens * value for tokens, value in known) / weight
