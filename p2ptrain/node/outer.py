"""Keep θ and m at the ledger's head: from a snapshot once, then one committed update at a time.

A newcomer, a node that was away for an hour and one that missed a single ring all do the same: get
the next update that they lack, by its digest, from whoever has it, and apply those bytes. Nothing
here trusts the peer that sent them; the ledger named them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial

import trio

from p2ptrain.errors import ManifestInvalid, StoreError
from p2ptrain.ids import Digest
from p2ptrain.ledger.events import SnapshotTaken
from p2ptrain.ledger.values import Certified, Commit
from p2ptrain.node import quarantine, transfer, updates
from p2ptrain.node.parts import Parts
from p2ptrain.node.quarantine import Contradiction
from p2ptrain.node.start import Start, choose_start, leap_pays
from p2ptrain.node.threads import in_thread
from p2ptrain.observe.states import CatchingUp, StandingBy
from p2ptrain.state import Frozen, snapshot_meta, write_frozen
from p2ptrain.store import Head, Leisure, Store

HEAR_FIRST_S = 10.0
"""Five heartbeats: who has heard nobody by then is alone, and starts from what it has."""

LOST_S = 10.0
"""Five heartbeats, too: by then whoever still has an update was heard of, and was asked."""


async def keep_outer_state(parts: Parts) -> None:
    """Load a snapshot, then follow the ledger for ever.

    Raises:
        StoreError: this store cannot take what it must.
        RemoteProtocolError: the members certified as an update what is none.
    """
    with trio.move_on_after(HEAR_FIRST_S):
        while not parts.ledger_is_current():
            await parts.changes.wait()
    await _load(parts)
    started_s, replayed = time.monotonic(), 0
    async with trio.open_nursery() as nursery:
        while not parts.at_head():
            replayed += await _go_on(parts, nursery)
        parts.journal.write(
            "caught-up",
            step=parts.outer.step,
            updates=replayed,
            seconds=time.monotonic() - started_s,
        )
        parts.speak_now()
        while True:
            if found := quarantine.contradiction(parts):
                await _put_right(parts, found, nursery)
            elif parts.at_head():
                await parts.changes.wait()
            else:
                await _go_on(parts, nursery)


async def _put_right(parts: Parts, found: Contradiction, nursery: trio.Nursery) -> None:
    """Go on from the certified snapshot. Of its chunks those that ours has, too, are here."""
    quarantine.begin(parts, found)
    while parts.outer.writing:
        await parts.changes.wait()
    await trio.to_thread.run_sync(quarantine.disown, parts.store)
    await _load(parts, first_step=found.step)
    while not parts.at_head():
        await _go_on(parts, nursery)
    quarantine.end(parts, found)


def _start(parts: Parts, useless: Collection[Digest], first_step: int = 0) -> Start | None:
    """The cheapest of our own snapshot, the newest certified one, and genesis, from which the chain
    that is kept leads to its head; none of before `first_step`; None if there is none such yet.
    """
    head = parts.store.head()
    own = None
    usable = head is not None and head.run == parts.run
    if (
        head
        and usable
        and _is_ours(parts, head)
        and head.snapshot is not None
        and head.snapshot_step is not None
    ):
        own = Start(head.snapshot_step, head.snapshot)
    certified = parts.ledger.state.snapshot
    others = [Start(certified.step, certified.digest)] if certified else []
    return choose_start(
        target_step=parts.ledger.state.step,
        own=own if own and own.digest not in useless else None,
        others=[
            Start(0, parts.manifest.genesis),
            *(each for each in others if each.digest not in useless),
        ],
        snapshot_bytes=8 * parts.layout.numel,
        update_bytes=updates.payload_bytes_about(parts),
        first_step=max(first_step, parts.ledger.kept.start.step),
    )


def _is_ours(parts: Parts, head: Head) -> bool:
    """Whether θ and m of a head are of the chain that is followed here now.

    They need not be where the ledger was lost, or its user named a checkpoint of another line; nor
    where others were certified, and the node ended before it could put them right.
    """
    if head.snapshot is not None and head.snapshot_step is not None:
        entries = parts.ledger.kept.entries
        if quarantine.is_certified_otherwise(entries, head.snapshot_step, head.snapshot):
            return False
    kept, origin = parts.ledger.kept, parts.origin
    if head.height > kept.start.height:
        entry = kept.at(head.height)
        return entry is not None and entry.entry.digest == head.head
    return origin is None or origin.trusted is None


async def _load(parts: Parts, first_step: int = 0) -> None:
    """Have θ and m in memory as some snapshot has them, of `first_step` or later.

    One that nobody has any more, or that is none though its digest is certified, is passed over
    for the next best. Genesis is the last, and named by the run itself.
    """
    useless: set[Digest] = set()
    while True:
        pick = partial(_start, parts, useless, first_step)
        start = pick()
        if start is None:
            parts.enter(
                StandingBy("until a snapshot is certified that is newer than the checkpoint")
            )
            await parts.changes.wait()
            continue
        superseded = partial(_is_superseded, pick, start)
        try:
            return await _load_from(parts, start, superseded)
        except StoreError as exc:
            lie = isinstance(exc, ManifestInvalid) and start.digest != parts.manifest.genesis
            if exc.code != "CKPT-NO-SOURCE" and not lie:
                raise
            parts.journal.write("snapshot-useless", digest=start.digest, reason=exc.what)
            if lie:
                useless.add(start.digest)


def _is_superseded(pick: Callable[[], Start | None], start: Start) -> bool:
    return pick() != start


async def _load_from(parts: Parts, start: Start, unwanted: Callable[[], bool]) -> None:
    report = await transfer.fetch(parts, start.digest, shown=True, unwanted=unwanted)
    if report.bytes_by_peer:
        parts.journal.write(
            "snapshot-fetched",
            step=start.step,
            seconds=report.seconds,
            bytes_by_peer=report.bytes_by_peer,
            dropped=report.dropped,
        )
    load = partial(parts.outer.vectors.load_snapshot, parts.store, start.digest)
    while parts.standing.theta_in_use or parts.outer.writing:
        await parts.changes.wait()
    async with parts.outer.lock:
        parts.outer.moving = True
        await transfer.use(parts, start.digest, load)
        parts.outer.step = start.step
        parts.outer.moving = False
    parts.changes.ring()


async def _go_on(parts: Parts, nursery: trio.Nursery) -> int:
    """Put one outer step behind us, or leap over those whose updates take more bytes than a newer
    certified snapshot, or of which nobody has the updates any more.

    Who was away for longer than the others keep updates finds a certified snapshot that is newer.
    """
    step = parts.outer.step
    assert step is not None
    nearer = await _nearer(parts, step)
    if nearer is not None and await _leapt(parts, nearer):
        return 0
    try:
        return await _advance(parts, nursery)
    except StoreError as exc:
        if exc.code != "CKPT-NO-SOURCE":
            raise
        parts.journal.write("update-lost", step=step, reason=exc.what)
    await _load(parts, first_step=step + 1)
    return 0


async def _nearer(parts: Parts, step: int) -> Start | None:
    """The newest certified snapshot, if fewer bytes lead there than by the updates not held yet.

    Who keeps everything wants those anyway.
    """
    certified = parts.ledger.state.snapshot
    if certified is None or certified.digest == parts.outer.passed_over:
        return None
    pays = partial(
        leap_pays,
        snapshot_bytes=8 * parts.layout.numel,
        update_bytes=updates.payload_bytes_about(parts),
    )
    if parts.config.keep_snapshots is None or not pays(updates=certified.step - step):
        return None
    values = [parts.history.closing(each).entry.value for each in range(step, certified.step)]
    missed = [value.update for value in values if isinstance(value, Commit)]
    lacking = await trio.to_thread.run_sync(_lacking, parts.store, missed)
    return Start(certified.step, certified.digest) if pays(updates=lacking) else None


def _lacking(store: Store, blobs: Sequence[Digest]) -> int:
    """How many of these must be fetched, if need be to their end."""
    return sum(not store.has_chunk(digest) for digest in blobs)


async def _leapt(parts: Parts, to: Start) -> bool:
    """Whether θ and m are those of this snapshot now; if nobody has it, the log is left."""
    step, since = parts.outer.step, parts.now()
    try:
        await _load_from(parts, to, lambda: parts.now() > since + LOST_S)
    except StoreError as exc:
        gone = exc.code == "CKPT-NO-SOURCE" or isinstance(exc, ManifestInvalid)
        if parts.outer.moving or not gone:
            raise
        parts.outer.passed_over = to.digest
        parts.journal.write("snapshot-useless", digest=to.digest, reason=exc.what)
        return False
    parts.journal.write("leapt", step=step, to=to.step)
    return True


async def _advance(parts: Parts, nursery: trio.Nursery) -> int:
    """Put one outer step behind us. Returns how many updates that took: one, or none for a Skip."""
    step = parts.outer.step
    assert step is not None
    closing = parts.history.closing(step)
    behind = parts.ledger.state.step - step
    if behind > 1:
        parts.enter_unless_training(CatchingUp(behind))
    commit = closing.entry.value
    if isinstance(commit, Commit):
        await _apply(parts, commit)
    else:
        parts.outer.step = step + 1
    _note_utilisation(parts)
    parts.journal.write("committed", **_account(parts, step, closing))
    parts.changes.ring()
    parts.speak_now()
    every = parts.manifest.policy.snapshot_every
    # While catching up from afar, the next snapshot is soon an old one.
    if isinstance(commit, Commit) and (step + 1) % every == 0 and behind <= every:
        await _snapshot(parts, closing, nursery)
    return int(isinstance(commit, Commit))


async def _apply(parts: Parts, commit: Commit) -> None:
    """Apply the update's bytes, once no ring and no trainer reads θ any more."""
    since = parts.now()

    def lost() -> bool:
        snapshot = parts.ledger.state.snapshot
        newer = snapshot is not None and snapshot.step > commit.step
        return newer and parts.now() > since + LOST_S

    await parts.until_known(commit.step)
    await updates.own_result(parts, commit.step)
    payload = await updates.obtain(parts, commit.update, commit.step, lost)
    while parts.standing.theta_in_use:
        await parts.changes.wait()
    outer = parts.leg(commit.step).manifest.outer
    merged = partial(updates.format_of(parts, commit.step).merged, payload)
    made, codec = await trio.to_thread.run_sync(merged, commit.step)
    fragment, residual = parts.fragment(commit.step), parts.residual(commit.step)
    apply = partial(parts.outer.vectors.apply, made, outer.lr, outer.momentum, codec, fragment)
    async with parts.outer.lock:
        parts.outer.moving = True
        await trio.to_thread.run_sync(apply)
        if residual is not None:
            residual.committed(commit.update)
        parts.outer.step = commit.step + 1
        parts.outer.moving = False


async def _snapshot(parts: Parts, closing: Certified, nursery: trio.Nursery) -> None:
    """Write θ and m as they are after `closing`, and have the ledger certify the digest.

    Returns when they are frozen; they may move on while they are written. A snapshot that comes due
    before the last one is written is left out: it would only take turns with it on the disk.
    """
    if parts.outer.writing:
        parts.journal.write("snapshot-left-out", step=closing.entry.value.step + 1)
        return
    held = ExitStack()
    freeze = parts.outer.vectors.freeze(parts.store.chunk_bytes)
    frozen = await trio.to_thread.run_sync(held.enter_context, freeze)
    parts.outer.writing = True
    nursery.start_soon(_write, parts, closing, frozen, held)


async def _write(parts: Parts, closing: Certified, frozen: Frozen, held: ExitStack) -> None:
    step = closing.entry.value.step + 1
    meta = snapshot_meta(parts.run, step, parts.layout.digest)
    numel, leisure = parts.layout.numel, Leisure()
    write = partial(write_frozen, parts.store, frozen, numel, meta, leisure=leisure)
    try:
        with held:
            digest = await in_thread(write, stop=leisure.end)
    finally:
        parts.outer.writing = False
    head = Head(
        run=parts.run,
        height=closing.entry.height,
        head=closing.entry.digest,
        step=step,
        snapshot=digest,
        snapshot_step=step,
    )
    await trio.to_thread.run_sync(parts.store.put_head, head)
    parts.journal.write("snapshot", step=step, digest=digest)
    await parts.tell(SnapshotTaken(step, digest))


def _note_utilisation(parts: Parts) -> None:
    """Which share of the time since the last outer step this node spent in inner steps."""
    standing, now_s = parts.standing, time.monotonic()
    if standing.advanced_s is not None:
        wall_s = max(1e-9, now_s - standing.advanced_s)
        standing.utilisation = min(1.0, standing.inner_s / wall_s)
    standing.advanced_s, standing.inner_s = now_s, 0.0


def _account(parts: Parts, step: int, closing: Certified) -> dict[str, object]:
    """What the journal says of an outer step that is behind us."""
    participants = parts.history.participants(step)
    return {
        "step": step,
        "height": closing.entry.height,
        "head": closing.entry.digest,
        "skipped": not isinstance(closing.entry.value, Commit),
        "tokens": sum(each.tokens for each in participants),
        "peers": len(participants),
        "took_part": any(each.peer == parts.me for each in participants),
        "compute_utilisation": parts.standing.utilisation,
    }
