"""Print what users want to read in a node's log: one line for each outer step, and what is unusual.

A node trains, exchanges and waits in every outer step. These states appear only with `--verbose`.
States that lead to training, and states that interrupt it, always appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from p2ptrain.errors import counted
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Skip
from p2ptrain.node.control.member_news import MemberNews
from p2ptrain.node.joining import hello_server
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import (
    Exchanging,
    FetchingSnapshot,
    Paused,
    StandingBy,
    State,
    Stopped,
    Training,
    words,
)
from p2ptrain.observe.step_line import Pace, StepLine
from p2ptrain.peers.reach_verdict import NOT_ASKED, Verdict
from p2ptrain.ring import ReduceStatistics
from p2ptrain.suggested_command import to_paste

PrintLine = Callable[[str], None]


@dataclass(slots=True)
class _Told:
    """The newest lines, so that nothing is printed twice."""

    news: str = ""
    state: State | None = None
    step: int | None = None
    exchange: ReduceStatistics | None = None
    trainer: str = ""
    reach: Verdict = NOT_ASKED
    warned: frozenset[Caution] = frozenset()
    asked: set[PeerId] = field(default_factory=set)
    ended: bool = False
    pace: Pace = field(default_factory=Pace)


async def print_progress(context: Context, print_line: PrintLine) -> None:
    """Print outer steps, changes of state, warnings and requests to join, until cancelled."""
    told, members = _Told(), MemberNews(context)
    while True:
        _print_trainer(context, told, print_line)
        _print_state(context, told, print_line)
        _print_warnings(context, told, print_line)
        _print_step(context, told, print_line)
        members.print_news(context, print_line)
        _print_end(context, told, print_line)
        await context.changes.wait()


def _print_trainer(context: Context, told: _Told, print_line: PrintLine) -> None:
    if context.trainer.device != told.trainer:
        told.trainer = context.trainer.device
        print_line(f"training on {told.trainer}")


def _print_state(context: Context, told: _Told, print_line: PrintLine) -> None:
    state = context.shown
    if (news := _news(state)) == told.news:
        return
    told.news = news
    if context.config.verbose or not _is_routine(context, told.state, state):
        told.state = state
        print_line(words(state))


def _news(state: State) -> str:
    """Return a text that changes whenever the state should be printed again. Changes of numbers do
    not count, except each tenth of a snapshot's download, which can take minutes or hours."""
    match state:
        case StandingBy():
            return words(state)
        case FetchingSnapshot(bytes_done, bytes_total):
            return f"{state.name} {10 * bytes_done // max(1, bytes_total)}"
        case _:
            return state.name


def _is_routine(context: Context, printed: State | None, state: State) -> bool:
    """Return whether `state` is part of every outer step. `printed` is the last state in the log.
    While it is another one than training, the log still says what kept this node from training."""
    if not isinstance(printed, Training) or not context.trainer.up:
        return False
    ended = context.ledger.snapshot.phase is Phase.ENDED
    return isinstance(state, Training | Exchanging) or (isinstance(state, StandingBy) and not ended)


def _print_warnings(context: Context, told: _Told, print_line: PrintLine) -> None:
    if context.own_heartbeat.reach.verdict != told.reach:
        told.reach = context.own_heartbeat.reach.verdict
        print_line(f"reachability: {told.reach.words}")
    shown = frozenset(context.alerts.warnings.values())
    for caution in context.alerts.warnings.values():
        if caution not in told.warned:
            print_line(f"warning: {caution.words}")
    told.warned = shown
    for peer in hello_server.waiting_peers(context):
        if peer not in told.asked:
            told.asked.add(peer)
            print_line(hello_server.request_line(context, peer))


def _print_step(context: Context, told: _Told, print_line: PrintLine) -> None:
    step = context.outer.step
    if step in (told.step, None):
        return
    assert step is not None, "a step that is None has been dealt with"
    told.step = step
    last, told.exchange = told.exchange, context.reduce.last_ring
    exchange = told.exchange if told.exchange is not last else None
    print_line(str(step_line(context, step, told.pace, exchange)))


def _print_end(context: Context, told: _Told, print_line: PrintLine) -> None:
    """Print a summary of the run once it is complete and this node has its final weights."""
    over = context.ledger.snapshot.phase is Phase.ENDED or context.state.stopped
    if over and context.at_head() and not told.ended:
        told.ended = True
        for line in summary(context):
            print_line(line)


def summary(context: Context) -> Iterator[str]:
    """Yield the lines that end a run: its result, thanks, and the command that writes the weights
    to a directory."""
    state, held_out = context.ledger.snapshot, context.trainer.validation.newest
    peers = [peer for peer, tokens in state.tokens_by_peer.items() if tokens]
    loss = f"; loss on held-out data {held_out.loss:.3f}" if held_out and held_out.loss else ""
    end, stop = "the run is complete", context.about(state.step).stop
    if stop:
        end = f"the organiser has ended the run ({stop})"
    yield (
        f"{end}: {counted(state.step, 'outer step')}, {state.tokens:,} tokens by "
        f"{counted(len(peers), 'peer')}{loss}"
    )
    if own := state.tokens_by_peer.get(context.me, 0):
        yield f"thank you: {own:,} of these tokens are yours ({own / state.tokens:.0%})"
    elif context.config.seed:
        yield "thank you for serving the run"
    export = to_paste(context.home.root, "export --to hf DIR")
    yield f"write the weights to a directory: {export}"


def step_line(
    context: Context, step: int, pace: Pace, exchange: ReduceStatistics | None = None
) -> StepLine:
    """Return the line about θ having reached outer step `step`, and note the time in `pace`.
    `exchange`: the measurements of an exchange since the last line, if there was one."""
    steps, left = context.manifest.outer.steps, max(0, context.ledger.snapshot.step - step)
    seconds = pace.note(step, context.now(), replayed=left > 0)
    trainer, held_out = context.trainer, context.trainer.validation.newest
    if not context.ledger.kept.start.step < step <= context.ledger.snapshot.step:
        # θ comes from a snapshot, and the entries before it are not here.
        return StepLine(step, steps, left=left)
    history = context.ledger.history
    participants = history.participants(step - 1)
    own = sum(each.tokens for each in participants if each.peer == context.me)
    return StepLine(
        step,
        steps,
        skipped=isinstance(history.closing(step - 1).entry.value, Skip),
        loss=trainer.progress.loss if trainer.progress and not left else None,
        held_out=held_out.loss if held_out and not left else None,
        tokens=sum(each.tokens for each in participants),
        own_tokens=own,
        seconds=seconds,
        exchange_s=exchange.seconds if exchange and own and not left else None,
        peers=len(participants),
        left=left,
        eta_s=pace.eta_s(steps - step),
        note=note(context),
    )


def note(context: Context) -> str:
    """Return what the owner's wishes do to this node, in a word or two; "" if nothing."""
    own = context.state
    if own.stopped:
        return Stopped.name
    finishing = "" if own.finishing is None else "finishing"
    return ", ".join(filter(None, (Paused.name if own.pause else "", finishing)))
