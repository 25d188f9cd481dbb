"""Regularly read all chunks in the store, and fetch damaged ones again before they are needed.

Every chunk is hashed when it is read, so damage is detected then. But a snapshot may stay unread
for weeks, and when it is needed, no peer may have an intact copy any more. So all chunks are read
again and again, slowly. The store removes damaged chunks. They are reported to the user, and
fetched from peers like other missing chunks.

A damaged chunk that no peer has is probably not needed, but only a garbage collection finds out
whether a kept blob needs it. Each pass asks peers for the chunk until the store forgets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from p2ptrain.errors import StoreError, counted
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.store import ChunkHealth

FIRST_S = 300.0
"""Seconds after the start before the first pass: a starting node needs its disk for other work."""

PAUSE_S = 3600.0
"""Seconds between two passes, so that a small store is not read continuously."""

WARNING = "rot"


@dataclass(slots=True)
class ScrubPass:
    """The results of one pass, which reads the entire store once."""

    chunks: int = 0
    bytes: int = 0
    damaged: list[Digest] = field(default_factory=list)
    repaired: list[Digest] = field(default_factory=list)

    @property
    def lost(self) -> list[Digest]:
        repaired = set(self.repaired)
        return [digest for digest in self.damaged if digest not in repaired]

    @property
    def caution(self) -> Caution:
        were = "was" if len(self.damaged) == 1 else "were"
        chunks = counted(self.chunks, "chunk")
        what = f"{len(self.damaged)} of {chunks} on this disk {were} damaged; "
        what += f"replaced with copies from peers: {len(self.repaired) if self.lost else 'all'}"
        if self.lost:
            what += f"; no connected peer has the other {len(self.lost)}"
        return Caution("CKPT-HASH", what, "move the home to a healthy disk soon")


async def scrub(context: Context, *, first_s: float = FIRST_S) -> None:
    """Run pass after pass until cancelled. A requested pass starts at once, and at full speed.

    Raises StoreError: the store cannot take a repaired chunk."""
    rate = context.config.scrub_bytes_per_s
    await _asked_or_after(context, first_s if rate else float("inf"))
    while True:
        asked = context.blobs.scrub_asked.is_set()
        context.blobs.scrub_asked = trio.Event()
        done = await one_pass(context, None if asked else rate)
        context.journal.write(
            "scrubbed", chunks=done.chunks, bytes=done.bytes, lost=done.lost, asked=asked
        )
        await _asked_or_after(context, PAUSE_S if rate else float("inf"))


async def _asked_or_after(context: Context, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await context.blobs.scrub_asked.wait()


async def one_pass(context: Context, bytes_per_s: float | None) -> ScrubPass:
    """Read the store once, at `bytes_per_s` (None: at full speed), and repair damaged chunks."""
    done = ScrubPass()
    context.alerts.clear(WARNING)
    for fan in range(context.store.fans):
        found: list[Digest] = []
        for digest in await trio.to_thread.run_sync(context.store.chunks_in, fan):
            health = await trio.to_thread.run_sync(context.store.examine, digest)
            done.chunks += 1
            done.bytes += health.bytes
            if health.is_damaged:
                found.append(digest)
                _record_damage(context, done, digest, health)
            await _asked_or_after(context, health.bytes / bytes_per_s if bytes_per_s else 0.0)
        if found:
            done.repaired += await repair(context, found)
            context.alerts.show(WARNING, done.caution)
            context.changes.notify_all()
    return done


def _record_damage(context: Context, done: ScrubPass, digest: Digest, health: ChunkHealth) -> None:
    done.damaged.append(digest)
    context.journal.write("bit-rot", digest=digest, why=health.why)


async def repair(context: Context, damaged: Sequence[Digest]) -> list[Digest]:
    """Fetch chunks that were removed because they were damaged. Return those that were fetched.

    Raises StoreError: the store cannot take them."""
    timing = context.timing.repair
    late = fetch.after(context, timing.look_s)
    try:
        await fetch.fetch_loose(context, damaged, unwanted=late, patient=False, try_s=timing.try_s)
    except StoreError as exc:
        if exc.code != "CKPT-NO-SOURCE":
            raise
    repaired = [digest for digest in damaged if context.store.has_chunk(digest)]
    lost = [digest for digest in damaged if digest not in set(repaired)]
    context.journal.write("rot-repaired", repaired=repaired, lost=lost)
    return repaired
