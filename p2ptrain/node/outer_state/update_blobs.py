"""Check the bytes of an update before this node votes for it and before it is applied.

The ledger names an update by its digest, which does not guarantee anything about its content. A
voter that did not compute the update itself must not certify bytes that cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.archive.update_format import Opened
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Parts

LAG_S = 5.0
"""Seconds to wait for this node's own result: participants finish a reduce within a few seconds of
each other. After that, something is wrong and the update is fetched, which takes as long as the
reduce over a slow connection."""


def payload_bytes_about(parts: Parts) -> int:
    """Estimate the mean size of current updates in bytes, from the terms that this node knows."""
    state = parts.ledger.state
    return parts.outer_steps.payload_bytes_about(state.terms, state.step)


async def obtain(
    parts: Parts,
    digest: Digest,
    outer_step: OuterStep,
    unwanted: Callable[[], bool] = fetch.never,
) -> memoryview:
    """Return the payload of a certified update, from the store or from peers.

    Raises:
        RemoteProtocolError: the blob is not an update of this run and step.
        StoreError: the store cannot take it, or no peer has it and it is unwanted (CKPT-NO-SOURCE).
    """
    read = partial(outer_step.update.read, parts.store, digest)
    with _blob_expected(digest):
        return await fetch.use(parts, digest, read, unwanted, patient=False)


async def own_result(parts: Parts, step: int) -> None:
    """If this node is averaging in a reduce of `step`, wait up to `LAG_S` for its result."""
    with trio.move_on_after(LAG_S):
        while parts.standing.averaging == step:
            await parts.changes.wait()


async def inspect(
    parts: Parts, digest: Digest, outer_step: OuterStep, opened: Opened | None = None
) -> None:
    """Fetch an update before this node votes for it, and check that it can be applied.

    The manifest is fetched first. The rest is fetched only if the manifest states the size of an
    update; otherwise any voter could fill our disk.

    A node must not vote for an update that breaks the bound on influence (SPEC.md S14), nor for one
    that a power cut could still remove from its store. `opened` is the reduce that should have
    computed it.

    Raises:
        RemoteProtocolError, StoreError: as for `obtain`.
    """
    await own_result(parts, outer_step.step)
    with _blob_expected(digest):
        if not await trio.to_thread.run_sync(parts.store.holds_blob, digest):
            await fetch.fetch_loose(parts, [digest])
            check = partial(outer_step.update.check_manifest, parts.store, digest)
            await trio.to_thread.run_sync(check)
    payload = await obtain(parts, digest, outer_step)
    if opened is not None:
        await hold(payload, outer_step, opened)
    await trio.to_thread.run_sync(parts.store.settle)


async def hold(payload: bytes | memoryview, outer_step: OuterStep, opened: Opened) -> None:
    """Check the bound on influence. Raises RemoteProtocolError if the update breaks it."""
    await trio.to_thread.run_sync(outer_step.update.hold, payload, opened)


@contextmanager
def _blob_expected(digest: Digest) -> Iterator[None]:
    """If a digest does not name a blob, blame the peer and not our store."""
    try:
        yield
    except ManifestInvalid as exc:
        raise RemoteProtocolError(f"{digest[:12]} is not a valid blob: {exc.what}") from exc
