"""The bytes of an update: checked before anybody votes for them, and before anybody applies them.

An update is named by the ledger, but a name says nothing of what it names. A voter that has no
result of its own must not certify bytes that nobody could apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from p2ptrain import kernels
from p2ptrain.archive.update_format import KIND, Opened, UpdateFormat
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.state.context import Parts
from p2ptrain.run import RunManifest

LAG_S = 5.0
"""Participants of a reduce end it within a few seconds of each other; after that something is wrong
and the update is fetched, which over a slow line takes as long as the reduce did."""


def format_of(parts: Parts, step: int) -> UpdateFormat:
    """What the update of outer step `step` looks like."""
    return _format(parts, parts.leg(step).manifest)


def _format(parts: Parts, manifest: RunManifest) -> UpdateFormat:
    cut, merge = parts.fragments, manifest.sync.merge
    return UpdateFormat(parts.run, parts.layout, cut, manifest.codec, merge)


def codec_of(parts: Parts, step: int) -> kernels.Codec:
    """What the update of outer step `step` is written in."""
    return format_of(parts, step).codec


def payload_bytes(parts: Parts, step: int) -> int:
    """The length of the update of outer step `step`."""
    return format_of(parts, step).payload_bytes(step)


def payload_bytes_about(parts: Parts) -> int:
    """The length of an update nowadays, on average, as far as is known here."""
    return _format(parts, parts.about(parts.ledger.state.step).manifest).payload_bytes_mean


async def store(parts: Parts, step: int, payload: bytearray) -> Digest:
    """Keep what the ring made; returns its digest."""
    put = partial(parts.store.put_blob, KIND, [payload], format_of(parts, step).meta(step))
    return await trio.to_thread.run_sync(put)


async def obtain(
    parts: Parts, digest: Digest, step: int, unwanted: Callable[[], bool] = fetch.never
) -> bytes:
    """The payload of an update that is certified, from the store or from peers.

    Raises:
        RemoteProtocolError: the digest names what is no update of this run and step.
        StoreError: this store cannot take it, or nobody has it and it is unwanted (CKPT-NO-SOURCE).
    """
    read = partial(format_of(parts, step).read, parts.store, digest, step)
    with _blob_expected(digest):
        return await fetch.use(parts, digest, read, unwanted, patient=False)


async def own_result(parts: Parts, step: int) -> None:
    """Let the reduce of `step` end first in which this node is about to make the update itself."""
    with trio.move_on_after(LAG_S):
        while parts.standing.averaging == step:
            await parts.changes.wait()


async def inspect(parts: Parts, digest: Digest, step: int, opened: Opened | None = None) -> None:
    """Have an update here that somebody wants certified, and make sure that it can be applied.

    Its manifest comes first and alone: what it announces is not fetched before it has the size of
    an update, or anybody with a vote could fill our disk.

    Nobody votes for an update that breaks the bound on influence (SPEC.md S14), nor for one whose
    name in the store a power cut could still take away. `opened` is the reduce that is to have made
    it.

    Raises:
        RemoteProtocolError, StoreError: as `obtain` does.
    """
    await own_result(parts, step)
    with _blob_expected(digest):
        if not await trio.to_thread.run_sync(parts.store.holds_blob, digest):
            await fetch.fetch_loose(parts, [digest])
            check = partial(format_of(parts, step).check_manifest, parts.store, digest, step)
            await trio.to_thread.run_sync(check)
    payload = await obtain(parts, digest, step)
    if opened is not None:
        await hold(parts, payload, step, opened)
    await trio.to_thread.run_sync(parts.store.settle)


async def hold(parts: Parts, payload: bytes, step: int, opened: Opened) -> None:
    """Raises RemoteProtocolError for an update that breaks the bound on influence."""
    most = parts.influence_max(step)
    check = partial(format_of(parts, step).hold, payload, step, opened, most)
    await trio.to_thread.run_sync(check)


@contextmanager
def _blob_expected(digest: Digest) -> Iterator[None]:
    """A name is what a peer says; that it names no blob at all is not our store's fault."""
    try:
        yield
    except ManifestInvalid as exc:
        raise RemoteProtocolError(f"{digest[:12]} is not even a blob: {exc.what}") from exc
