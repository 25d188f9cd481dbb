"""Join a run's network only to fetch certified snapshots and updates from it.

An observer follows and checks the ledger as every node does. It trains nothing, loads no θ, and
ends once it has what it came for. It must be admitted like any other peer, since bulk data is sent
to admitted peers only. A home with a running node needs no observer: that node holds the newest
snapshots already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.archive.replay import CertifiedSnapshot, ChainFacts, chain_facts, snapshot_named
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import IdentityInUse, NetworkUnreachable, P2PTrainError, TryLater, first_error
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.names import label
from p2ptrain.node.assembly import NodeAssembly
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.node.consensus.pruning import nobody_keeps
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.main import open_node
from p2ptrain.node.outer_state.fetch import fetch as fetch_blob
from p2ptrain.node.outer_state.scrub import after, repair
from p2ptrain.node.presence import start_presence
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import Serving
from p2ptrain.suggested_command import to_paste

HEAR_S = 60.0
"""A heartbeat comes every two seconds. A node that hears none in a minute is connected to
nobody."""

CURRENT_S = 5.0
"""Two heartbeats: the first ones heard may be older than our connection, passed on late."""

NO_SOURCE_S = 30.0
"""How long to look for a blob that no peer has announced."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FetchedSnapshot:
    """A fetched snapshot, and the number of later updates that were fetched with it."""

    step: int
    digest: Digest
    height: int
    updates: int
    bytes_fetched: int
    seconds: float


def fetch(
    config: NodeConfig, wanted: str, *, updates: bool, pin: bool, print_line: PrintLine
) -> FetchedSnapshot:
    """Fetch a certified snapshot into the home: "newest", "genesis", a step, or a digest's
    beginning. `updates` fetches all later updates too.

    Raises:
        P2PTrainError: the snapshot cannot be fetched; the error says why and what to do.
    """
    work = partial(fetch_here, wanted=wanted, updates=updates, pin=pin, print_line=print_line)
    try:
        return _run(config, work, print_line)
    except HomeInUse as exc:
        raise _has_a_node(exc, config.home) from exc


def repair_store(
    config: NodeConfig, damaged: Sequence[Digest], print_line: PrintLine
) -> list[Digest]:
    """Set these chunks aside and fetch them from peers. Return those that were fetched.

    Raises:
        HomeInUse: a node runs here, and repairs its store by itself.
        P2PTrainError: no peer can be reached, or this store cannot be written to.
    """

    async def work(parts: Parts) -> list[Digest]:
        for digest in damaged:
            await trio.to_thread.run_sync(parts.store.examine, digest)
        return await repair(parts, damaged)

    return _run(config, work, print_line)


class HomeInUse(IdentityInUse):
    """A node runs in the same home."""


def as_observer(config: NodeConfig) -> NodeConfig:
    return replace(config, seed=True, observes=True, assume_yes=True)


def _run(
    config: NodeConfig, work: Callable[[Parts], Awaitable[Result]], print_line: PrintLine
) -> Result:
    home, config = Home(config.home), as_observer(config)
    observed = partial(_observe, config, home, print_line=print_line, work=work)
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


async def _observe(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    *,
    print_line: PrintLine,
    work: Callable[[Parts], Awaitable[Result]],
) -> Result:
    reception = StartupStatus(load_or_create(home.identity).peer, journal)
    async with open_node(config, home, reception, print_line) as made:
        return await observe(made, work)


async def observe(made: NodeAssembly, work: Callable[[Parts], Awaitable[Result]]) -> Result:
    """Run `work` while this process follows the ledger, and return its result.

    Raises what `work` raises.
    """
    parts, done = made.parts, list[Result]()
    parts.set_state(Serving())

    async def follow_the_ledger() -> None:
        await run_ledger(parts, made.events)
        raise TryLater(
            "the run has just left a branch for another chain",
            do="repeat the command; it continues from there",
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_the_ledger)
        start_presence(nursery, parts, made.run)
        done.append(await work(parts))
        nursery.cancel_scope.cancel()
    return done[0]


async def _be_current(parts: Parts, print_line: PrintLine) -> None:
    """Return when our ledger has been as long as every counted peer's for `CURRENT_S`.

    Raises NetworkUnreachable, TryLater: for `HEAR_S` no counted peer was heard and no entry came;
    or every peer that is ahead has pruned the entries that are missing here.
    """
    height, give_up_at, behind_at = 0, parts.now() + HEAR_S, parts.now()
    while parts.now() < behind_at + CURRENT_S:
        await parts.changes.wait(at_most_s=min(1.0, CURRENT_S))
        if not parts.ledger_is_current():
            behind_at = parts.now()
        if parts.counted() or parts.ledger.state.height > height:
            height, give_up_at = parts.ledger.state.height, parts.now() + HEAR_S
        elif parts.now() > give_up_at:
            raise nobody_keeps(parts) if parts.ledger.out_of_reach() else _nobody(parts)
    for words in _not_counted(parts):
        print_line(words)


def _nobody(parts: Parts) -> NetworkUnreachable:
    return NetworkUnreachable(
        f"no peer of the run was heard in {HEAR_S:.0f} s"
        + (" that shows the ledger" if len(parts.peers) else ""),
        evidence=_not_counted(parts),
        do="give --bootstrap with the address of a node that is running now",
    )


def _not_counted(parts: Parts) -> list[str]:
    believed, height = {record.peer for record in parts.believed()}, parts.ledger.state.height
    return [
        (
            f"{label(record.peer)} claims {record.heartbeat.height} entries of the ledger and "
            f"shows none after entry {height}: its claim is ignored"
        )
        for record in parts.peers
        if record.peer not in believed
    ]


async def fetch_here(
    parts: Parts, *, wanted: str, updates: bool, pin: bool, print_line: PrintLine
) -> FetchedSnapshot:
    """Fetch as `fetch` does, in a network that is already up."""
    await _be_current(parts, print_line)
    account = chain_facts(parts.manifest, parts.ledger.kept.start, parts.ledger.kept.entries)
    named = snapshot_named(account, wanted)
    with trio.move_on_after(NO_SOURCE_S):
        # Replays need the amendments.
        await parts.until_known(parts.ledger.state.step)
    print_line(f"fetching the snapshot of outer step {named.step}, {named.digest[:12]}…")
    if pin:
        await trio.to_thread.run_sync(partial(parts.store.lasting.change, add=named.digest))
    began, count = parts.now(), 0
    later = _updates_since(account, named) if updates else []
    # The tokenizer first: without it nobody can export or use the weights.
    for digest in (parts.manifest.tokenizer, named.digest, *later):
        report = await fetch_blob(
            parts, digest, shown=digest == named.digest, unwanted=after(parts, NO_SOURCE_S)
        )
        count += report.bytes_fetched
        for peer in report.blamed:
            print_line(f"{label(peer)} sent a wrong chunk and is not asked again")
    return FetchedSnapshot(
        step=named.step,
        digest=named.digest,
        height=named.source.height,
        updates=len(later),
        bytes_fetched=count,
        seconds=parts.now() - began,
    )


def _updates_since(account: ChainFacts, named: CertifiedSnapshot) -> list[Digest]:
    later = (account.steps[step].update for step in range(named.step, account.end))
    return [update for update in later if update is not None]


def _has_a_node(exc: IdentityInUse, home: Path) -> IdentityInUse:
    return IdentityInUse(
        exc.what,
        evidence=exc.evidence,
        likely="that node holds the newest snapshots, and fetches what it lacks",
        do=(
            f"{to_paste(home, 'ckpt ls')} shows its snapshots, {to_paste(home, 'ckpt pin')} keeps "
            "one; to fetch another one, stop the node, or give --home with another folder"
        ),
    )
