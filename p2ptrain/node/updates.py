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
from p2ptrain.errors import ManifestInvalid, RemoteProtocolError
from p2ptrain.ids import Digest
from p2ptrain.node import transfer
from p2ptrain.node.parts import Parts

KIND = "update"


def codec_of(parts: Parts) -> kernels.Codec:
    """What this run's updates are written in."""
    spec = parts.manifest.codec
    return kernels.codec(spec.name, spec.block)


def payload_bytes(parts: Parts) -> int:
    """The length of every update of this run."""
    return codec_of(parts).encoded_bytes(parts.layout.numel)


def meta(parts: Parts, step: int) -> dict[str, object]:
    """What an update says of itself. Equal on all peers, since it is part of what is named."""
    codec = parts.manifest.codec
    return {
        "run": parts.run,
        "step": step,
        "numel": parts.layout.numel,
        "codec": codec.name,
        "block": codec.block,
    }


async def store(parts: Parts, step: int, payload: bytearray) -> Digest:
    """Keep what the ring made; returns its digest."""
    put = partial(parts.store.put_blob, KIND, [payload], meta(parts, step))
    return await trio.to_thread.run_sync(put)


async def obtain(
    parts: Parts, digest: Digest, step: int, unwanted: Callable[[], bool] = transfer.never
) -> bytes:
    """The payload of an update that is certified, from the store or from peers.

    Raises:
        RemoteProtocolError: the digest names what is no update of this run and step.
        StoreError: this store cannot take it, or nobody has it and it is unwanted (CKPT-NO-SOURCE).
    """
    with _blob_expected(digest):
        return await transfer.use(parts, digest, partial(_read, parts, digest, step), unwanted)


async def inspect(parts: Parts, digest: Digest, step: int) -> None:
    """Have an update here that somebody wants certified, and make sure that it can be applied.

    Its manifest comes first and alone: what it announces is not fetched before it has the size of
    an update, or anybody with a vote could fill our disk.

    Raises:
        RemoteProtocolError, StoreError: as `obtain` does.
    """
    with _blob_expected(digest):
        if not await trio.to_thread.run_sync(parts.store.holds_blob, digest):
            await transfer.fetch_loose(parts, [digest])
            await trio.to_thread.run_sync(partial(_check_manifest, parts, digest, step))
    await obtain(parts, digest, step)


@contextmanager
def _blob_expected(digest: Digest) -> Iterator[None]:
    """A name is what a peer says; that it names no blob at all is not our store's fault."""
    try:
        yield
    except ManifestInvalid as exc:
        raise RemoteProtocolError(f"{digest[:12]} is not even a blob: {exc.what}") from exc


def _check_manifest(parts: Parts, digest: Digest, step: int) -> None:
    manifest = parts.store.manifest(digest)
    if manifest.kind != KIND or dict(manifest.meta) != meta(parts, step):
        raise RemoteProtocolError(f"{digest[:12]} is not an update of outer step {step}")
    if manifest.size != payload_bytes(parts):
        raise RemoteProtocolError(f"update {digest[:12]} has {manifest.size} bytes")


def _read(parts: Parts, digest: Digest, step: int) -> bytes:
    _check_manifest(parts, digest, step)
    payload = parts.store.read_blob(digest)
    try:
        codec_of(parts).check(payload, parts.layout.numel)
    except kernels.BadScale as exc:
        raise RemoteProtocolError(f"update {digest[:12]} holds what no codec writes") from exc
    return payload
