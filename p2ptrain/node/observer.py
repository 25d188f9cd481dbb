"""Join a run's network only to fetch certified snapshots and updates.

An observer follows and checks the ledger like every node. It does not train or load θ, and ends
once it has fetched what the user asked for. It must be admitted like any other peer, since bulk
data is only sent to admitted peers. A home with a running node does not need an observer: that node
already has the newest snapshots.
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
from p2ptrain.archive.replay import Account, Named, account_of, named_by
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import IdentityInUse, NetworkUnreachable, P2PTrainError, TryLater, first_error
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.names import label
from p2ptrain.node.assembly import Made
from p2ptrain.node.consensus.ledger_task import agree
from p2ptrain.node.consensus.pruning import nobody_keeps
from p2ptrain.node.joining.find_run import Say
from p2ptrain.node.joining.startup_status import Reception
from p2ptrain.node.main import opened
from p2ptrain.node.outer_state.fetch import fetch as fetch_blob
from p2ptrain.node.outer_state.scrub import after, repair
from p2ptrain.node.presence import be_present
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import Serving
from p2ptrain.suggested_command import to_paste

HEAR_S = 60.0
"""Seconds without a heartbeat after which this node counts as disconnected. Each peer sends one
every two seconds."""

CURRENT_S = 5.0
"""About two heartbeats: the first ones that arrive may be old ones that were forwarded late."""

NO_SOURCE_S = 30.0
"""Seconds to look for a blob that no peer sends."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched snapshot, and the number of later updates that were fetched with it."""

    step: int
    digest: Digest
    height: int
    updates: int
    bytes_fetched: int
    seconds: float


def fetch(config: NodeConfig, wanted: str, *, updates: bool, pin: bool, say: Say) -> Fetched:
    """Fetch a certified snapshot into the home. `wanted` is "newest", "genesis", a step, or the
    beginning of a digest. `updates`: also fetch all later updates.

    Raises:
        P2PTrainError: the snapshot cannot be fetched; the error says why, and what to do.
    """
    work = partial(fetch_here, wanted=wanted, updates=updates, pin=pin, say=say)
    try:
        return _run(config, work, say)
    except HomeInUse as exc:
        raise _has_a_node(exc, config.home) from exc


def repair_store(config: NodeConfig, damaged: Sequence[Digest], say: Say) -> list[Digest]:
    """Move damaged chunks out of the store and fetch them from peers. Return those that were
    fetched.

    Raises:
        HomeInUse: a node runs in this home, and repairs the store itself.
        P2PTrainError: no peer can be reached, or this store cannot be written to.
    """

    async def work(parts: Parts) -> list[Digest]:
        for digest in damaged:
            await trio.to_thread.run_sync(parts.store.examine, digest)
        return await repair(parts, damaged)

    return _run(config, work, say)


class HomeInUse(IdentityInUse):
    """A node runs in the same home."""


def as_observer(config: NodeConfig) -> NodeConfig:
    return replace(config, seed=True, observes=True, assume_yes=True)


def _run(config: NodeConfig, work: Callable[[Parts], Awaitable[Result]], say: Say) -> Result:
    home, config = Home(config.home), as_observer(config)
    observed = partial(_observe, config, home, say=say, work=work)
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
    say: Say,
    work: Callable[[Parts], Awaitable[Result]],
) -> Result:
    reception = Reception(load_or_create(home.identity).peer, journal)
    async with opened(config, home, reception, say) as made:
        return await observe(made, work)


async def observe(made: Made, work: Callable[[Parts], Awaitable[Result]]) -> Result:
    """Run `work` while this process follows the ledger, and return its result.

    Raises what `work` raises.
    """
    parts, done = made.parts, list[Result]()
    parts.enter(Serving())

    async def follow_the_ledger() -> None:
        await agree(parts, made.events)
        raise TryLater(
            "the run has just left a branch for a different chain",
            do="repeat the command; it continues on that chain",
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_the_ledger)
        be_present(nursery, parts, made.run)
        done.append(await work(parts))
        nursery.cancel_scope.cancel()
    return done[0]


async def _be_current(parts: Parts, say: Say) -> None:
    """Return when our ledger has been as long as that of every counted peer for `CURRENT_S`.

    Raises NetworkUnreachable, TryLater: for `HEAR_S`, no counted peer was heard and no entry
    arrived, or every peer that is ahead has pruned the entries that are missing here.
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
        say(words)


def _nobody(parts: Parts) -> NetworkUnreachable:
    return NetworkUnreachable(
        f"no peer of the run was heard in {HEAR_S:.0f} s"
        + (", except peers that did not send the ledger" if len(parts.peers) else ""),
        evidence=_not_counted(parts),
        do="give --bootstrap with the address of a node that is running now",
    )


def _not_counted(parts: Parts) -> list[str]:
    believed, height = {view.peer for view in parts.believed()}, parts.ledger.state.height
    return [
        (
            f"ignoring {label(view.peer)}: it claims to have {view.heartbeat.height} entries of "
            f"the ledger, but did not send any after entry {height}"
        )
        for view in parts.peers
        if view.peer not in believed
    ]


async def fetch_here(parts: Parts, *, wanted: str, updates: bool, pin: bool, say: Say) -> Fetched:
    """Do what `fetch` does, in a network that is already running."""
    await _be_current(parts, say)
    account = account_of(parts.manifest, parts.ledger.kept.start, parts.ledger.kept.entries)
    named = named_by(account, wanted)
    with trio.move_on_after(NO_SOURCE_S):
        # Replays need the amendments.
        await parts.until_known(parts.ledger.state.step)
    say(f"fetching the snapshot of outer step {named.step}, {named.digest[:12]}…")
    if pin:
        await trio.to_thread.run_sync(partial(parts.store.lasting.change, add=named.digest))
    began, count = parts.now(), 0
    later = _updates_since(account, named) if updates else []
    # Fetch the tokenizer first: without it, the weights cannot be exported or used.
    for digest in (parts.manifest.tokenizer, named.digest, *later):
        report = await fetch_blob(
            parts, digest, shown=digest == named.digest, unwanted=after(parts, NO_SOURCE_S)
        )
        count += report.bytes_fetched
        for peer in report.blamed:
            say(f"{label(peer)} sent a wrong chunk and is not asked again")
    return Fetched(
        step=named.step,
        digest=named.digest,
        height=named.source.height,
        updates=len(later),
        bytes_fetched=count,
        seconds=parts.now() - began,
    )


def _updates_since(account: Account, named: Named) -> list[Digest]:
    later = (account.steps[step].update for step in range(named.step, account.end))
    return [update for update in later if update is not None]


def _has_a_node(exc: IdentityInUse, home: Path) -> IdentityInUse:
    return IdentityInUse(
        exc.what,
        evidence=exc.evidence,
        likely="that node already has the newest snapshots, and fetches what it lacks",
        do=(
            f"{to_paste(home, 'ckpt ls')} lists its snapshots, {to_paste(home, 'ckpt pin')} keeps "
            "one; to fetch a different one, stop the node, or use --home with a new directory"
        ),
    )
