"""Join a run's network only to fetch certified snapshots and updates.

An observer follows and checks the ledger like every node. It does not train or load θ, and ends
once it has fetched what the user asked for. It must be admitted like any other peer, since bulk
data is only sent to admitted peers. An observer cannot run in a home (the folder with a node's
files) while a node runs there. The node already has the newest snapshots.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import trio

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.archive.replay import chain_facts, snapshot_named
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import IdentityInUse, NetworkUnreachable, P2PTrainError, TryLater, first_error
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.names import label
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.node.consensus.pruning import nobody_keeps
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.outer_state.fetch import after
from p2ptrain.node.outer_state.fetch import fetch as fetch_blob
from p2ptrain.node.outer_state.scrub import repair
from p2ptrain.node.startup import open_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.tasks import start_presence
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import Serving
from p2ptrain.suggested_command import to_paste

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an observer waits for its peers. Users cannot change this."""

    hear_s: float = 60.0
    """Seconds without a heartbeat of any peer after which the observer gives up. Heartbeats arrive
    every two seconds, so a node that hears none in a minute is connected to nobody."""
    current_s: float = 5.0
    """Seconds for which our ledger must be at least as long as the peers' ledgers. In this time,
    two heartbeats of each peer arrive. The first may be outdated: peers may forward it late."""
    no_source_s: float = 30.0
    """Seconds to look for a blob that no peer has announced."""


USUAL = Patience()


@dataclass(frozen=True, slots=True)
class FetchedSnapshot:
    """A fetched snapshot, and the number of later `updates` that were fetched with it."""

    step: int
    digest: Digest
    height: int
    updates: int
    bytes_fetched: int
    seconds: float


def fetch(
    config: NodeConfig, wanted: str, *, updates: bool, pin: bool, print_line: PrintLine
) -> FetchedSnapshot:
    """Fetch a certified snapshot into the home. `wanted` is "newest", "genesis", a step, or the
    beginning of a digest. `updates`: also fetch all later updates. `pin`: keep the snapshot when
    old snapshots are deleted.
    Raises P2PTrainError: the snapshot cannot be fetched; the error says why, and what to do."""
    work = partial(fetch_here, wanted=wanted, updates=updates, pin=pin, print_line=print_line)
    try:
        return _run(config, work, print_line)
    except HomeInUse as exc:
        raise IdentityInUse(
            exc.what,
            evidence=exc.evidence,
            likely="that node already has the newest snapshots, and fetches what it lacks",
            do=f"{to_paste(config.home, 'ckpt ls')} lists its snapshots, "
            f"{to_paste(config.home, 'ckpt pin')} keeps one; to fetch a different one, stop the "
            "node, or use --home with a new directory",
        ) from exc


def repair_store(
    config: NodeConfig, damaged: Sequence[Digest], print_line: PrintLine
) -> list[Digest]:
    """Move damaged chunks out of the store and fetch them from peers. Return the fetched ones.

    Raises:
        HomeInUse: a node runs in this home, and repairs the store itself.
        P2PTrainError: no peer can be reached, or this store cannot be written to.
    """

    async def work(context: Context) -> list[Digest]:
        for digest in damaged:
            await trio.to_thread.run_sync(context.store.examine, digest)
        return await repair(context, damaged)

    return _run(config, work, print_line)


class HomeInUse(IdentityInUse):
    """A node runs in the home in which an observer was to run."""


def as_observer(config: NodeConfig) -> NodeConfig:
    """Return `config` with what an observer needs: it does not train, and does not ask the user."""
    return replace(config, seed=True, observes=True, assume_yes=True)


def _run(
    config: NodeConfig, work: Callable[[Context], Awaitable[Result]], print_line: PrintLine
) -> Result:
    home, config = Home(config.home), as_observer(config)

    async def observed(journal: Journal) -> Result:
        reception = StartupStatus(load_or_create(home.identity).peer, journal)
        async with open_node(config, home, reception, print_line) as context:
            return await observe(context, work)

    with ExitStack() as stack:
        try:
            stack.enter_context(sole_use(home))
        except IdentityInUse as exc:
            raise HomeInUse(exc.what, evidence=exc.evidence, do=exc.do) from exc
        journal = stack.enter_context(Journal(home.journal))
        try:
            return trio.run(observed, journal, strict_exception_groups=True)
        except* P2PTrainError as group:
            raise first_error(group) from None


async def observe(context: Context, work: Callable[[Context], Awaitable[Result]]) -> Result:
    """Run `work` while this process follows the ledger, and return its result.
    Raises what `work` raises."""
    done = list[Result]()
    context.state.set_state(Serving())

    async def follow_the_ledger() -> None:
        await run_ledger(context)
        raise TryLater(
            "the run has just left a branch for a different chain",
            do="repeat the command; it continues on that chain",
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_the_ledger)
        start_presence(nursery, context)
        done.append(await work(context))
        nursery.cancel_scope.cancel()
    return done[0]


async def be_current(context: Context, print_line: PrintLine, patience: Patience = USUAL) -> None:
    """Wait until our ledger has been at least as long as those of all peers for `current_s` seconds
    without interruption. Ignore the peers that `PeerDirectory.counted` leaves out: above all, those
    that claim to be ahead but do not send their entries.
    Raises NetworkUnreachable: no counted peer was heard and no entry arrived for `hear_s` seconds.
    Raises TryLater: the same, and every peer that is ahead has pruned the entries missing here."""
    height, give_up_at, behind_at = 0, context.now() + patience.hear_s, context.now()
    while context.now() < behind_at + patience.current_s:
        await context.changes.wait(at_most_s=min(1.0, patience.current_s))
        if not context.peers.ledger_is_current():
            behind_at = context.now()
        if context.peers.counted() or context.ledger.snapshot.height > height:
            height, give_up_at = context.ledger.snapshot.height, context.now() + patience.hear_s
        elif context.now() > give_up_at:
            if context.ledger.core.out_of_reach():
                raise nobody_keeps(context)
            raise _nobody(context, patience.hear_s)
    for words in _ignored(context):
        print_line(words)


def _nobody(context: Context, hear_s: float) -> NetworkUnreachable:
    return NetworkUnreachable(
        f"no peer of the run sent a heartbeat in {hear_s:.0f} s"
        + (", except peers that did not send the ledger" if len(context.peers.table) else ""),
        evidence=_ignored(context),
        do="give --bootstrap with the address of a node that is running now",
    )


def _ignored(context: Context) -> list[str]:
    """Return one line for each peer that claims to be ahead of us but does not prove it."""
    height = context.ledger.snapshot.height
    believed = {record.peer for record in context.peers.believed()}
    return [
        f"ignoring {label(record.peer)}: it claims to have {record.heartbeat.height} entries "
        f"of the ledger, but did not send any after entry {height}"
        for record in context.peers.table
        if record.peer not in believed
    ]


async def fetch_here(
    context: Context,
    *,
    wanted: str,
    updates: bool,
    pin: bool,
    print_line: PrintLine,
    patience: Patience = USUAL,
) -> FetchedSnapshot:
    """Fetch a snapshot as `fetch` does, with a context that is already open."""
    await be_current(context, print_line, patience)
    account = chain_facts(context.manifest, context.ledger.kept.start, context.ledger.kept.entries)
    named = snapshot_named(account, wanted)
    with trio.move_on_after(patience.no_source_s):
        # A later replay of the fetched updates needs the amendments up to the newest step.
        await context.until_known(context.ledger.snapshot.step)
    print_line(f"fetching the snapshot of outer step {named.step}, {named.digest[:12]}…")
    if pin:
        await trio.to_thread.run_sync(partial(context.store.lasting.change, add=named.digest))
    began, count = context.now(), 0
    steps = range(named.step, account.end) if updates else ()
    later = [update for step in steps if (update := account.steps[step].update) is not None]
    # Fetch the tokenizer first: without it, the weights cannot be exported or used.
    for digest in (context.manifest.tokenizer, named.digest, *later):
        unwanted = after(context, patience.no_source_s)
        report = await fetch_blob(context, digest, shown=digest == named.digest, unwanted=unwanted)
        count += report.bytes_fetched
        for peer in report.blamed:
            print_line(f"{label(peer)} sent a wrong chunk and is not asked again")
    return FetchedSnapshot(
        step=named.step,
        digest=named.digest,
        height=named.source.height,
        updates=len(later),
        bytes_fetched=count,
        seconds=context.now() - began,
    )
