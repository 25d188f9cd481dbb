"""Fetch the bytes of updates, and check them before this node votes for an update or applies it.

The ledger names an update by its digest, which says nothing about the content. So a voter that did
not compute the update itself must check that the bytes can be applied before it votes for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.archive.update_format import ReduceShape
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Context


def payload_bytes_about(context: Context) -> int:
    """Estimate the mean size of current updates in bytes, from the terms that this node knows."""
    state = context.ledger.snapshot
    return context.outer_steps.payload_bytes_about(state.terms, state.step)


async def fetch_update(
    context: Context,
    digest: Digest,
    outer_step: OuterStep,
    unwanted: Callable[[], bool] = fetch.never,
) -> memoryview:
    """Return the payload of an update, from the store or from peers; see `fetch.use`.

    Raises:
        RemoteProtocolError: the blob is not an update of this run and step.
        StoreError: the store cannot take it, or no peer has it and it is unwanted (CKPT-NO-SOURCE).
    """
    read = partial(outer_step.update.read_payload, context.store, digest)
    with _blob_expected(digest):
        return await fetch.use(context, digest, read, unwanted, patient=False)


async def own_result(context: Context, step: int) -> None:
    """Wait, up to `lag_s`, if a reduce of this node is computing the update of `step`."""
    with trio.move_on_after(context.timing.reduce.lag_s):
        while context.reduce.averaging == step:
            await context.changes.wait()


async def inspect(
    context: Context, digest: Digest, outer_step: OuterStep, opened: ReduceShape | None = None
) -> None:
    """Fetch an update before this node votes for it, and check that it can be applied.

    The manifest is fetched first. The rest is fetched only if the size in the manifest is that of
    an update of this step; otherwise any voter could fill our disk.

    A node must not vote for an update that breaks the bound on influence (SPEC.md S14), nor for one
    that a power cut could still remove from its store. `opened` is the reduce that should have
    computed the update.

    Raises RemoteProtocolError, StoreError: as for `fetch_update`."""
    await own_result(context, outer_step.step)
    with _blob_expected(digest):
        if not await trio.to_thread.run_sync(context.store.holds_blob, digest):
            await fetch.fetch_loose(context, [digest])
            check = partial(outer_step.update.check_manifest, context.store, digest)
            await trio.to_thread.run_sync(check)
    payload = await fetch_update(context, digest, outer_step)
    if opened is not None:
        await trio.to_thread.run_sync(outer_step.update.check_bound, payload, opened)
    await trio.to_thread.run_sync(context.store.make_durable)


@contextmanager
def _blob_expected(digest: Digest) -> Iterator[None]:
    """If `digest` does not name a valid blob, raise RemoteProtocolError instead of ManifestInvalid:
    a peer chose the digest, so this is not a fault of our store."""
    try:
        yield
    except ManifestInvalid as exc:
        raise RemoteProtocolError(f"{digest[:12]} is not a valid blob: {exc.what}") from exc
