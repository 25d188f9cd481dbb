"""A member's inner optimizer state for joiners: the signed offer, and the blob that it names.

The members have not agreed on this state; it is the donor's alone. So the donor signs the offer,
and a joiner can prove whose state it used. The blob contains the two vectors of `inner_format`. Its
digest proves nothing about their values, so `inner_bounds` checks them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.state import Layout
from p2ptrain.store import BlobManifest, Store
from p2ptrain.trainer.formats import inner_format
from p2ptrain.trainer.formats.inner_format import vector_bytes

KIND = "inner-state"
OFFER_BYTES_MAX = 2048
COUNT_MAX = 2**48

AGE_STEPS_MAX = 20
"""Maximum age of a state, in cycles of fragments. (A run averages one fragment of the model per
outer step; a trainer writes its state once per cycle.) The limit is generous: a joiner mainly needs
to know how large gradients are, which changes slowly."""


@dataclass(frozen=True, slots=True)
class OptimizerOffer:
    """The claim that blob `digest` is the signer's optimizer state. The signer's trainer wrote this
    state when it loaded outer step `step`, after `count` inner steps."""

    run: RunId
    layout: Digest
    step: int
    count: int
    digest: Digest

    def signed(self, donor: Identity) -> bytes:
        """Return the signed offer as bytes."""
        return Signed.by(donor, KIND, pack(asdict(self))).to_bytes()

    @classmethod
    def decode(cls, data: bytes, donor: PeerId) -> OptimizerOffer:
        """Decode the offer in `data`, which `donor` must have signed.
        Raises RemoteProtocolError."""
        document = Signed.from_bytes(data, kind=KIND, bytes_max=OFFER_BYTES_MAX)
        if document.signer != donor:
            raise RemoteProtocolError("a different peer signed the offer", peer=donor)
        value = unpack(document.payload, bytes_max=OFFER_BYTES_MAX)
        names = dict.fromkeys(("run", "layout", "digest"), str)
        told = fields(value, **names, step=int, count=int)
        for name in ("step", "count"):
            count(told[name], COUNT_MAX, "the offer")
        if told["count"] == 0 or not all(is_digest(told[name]) for name in names):
            raise RemoteProtocolError("the offer does not name a state", peer=donor)
        return cls(**told)  # type: ignore[arg-type]

    def is_current(self, step: int, fragments: int) -> bool:
        """Return whether a node at outer step `step` can use the offered state. A state of a later
        outer step can be used when the node has reached that step."""
        return self.step <= step and not self.is_too_old(step, fragments)

    def is_too_old(self, step: int, fragments: int) -> bool:
        """Return whether the state is too old for nodes at outer step `step` or later."""
        return self.step < step - AGE_STEPS_MAX * fragments

    def check_manifest(self, manifest: BlobManifest, layout: Layout) -> None:
        """Check the blob's manifest before the rest of the blob is fetched.
        Raises RemoteProtocolError."""
        meta = _meta(self.run, layout, self.step, self.count)
        if manifest.kind != KIND or dict(manifest.meta) != meta:
            raise RemoteProtocolError(f"blob {self.digest[:12]} is not the offered state")
        if manifest.size != 2 * vector_bytes(layout):
            raise RemoteProtocolError(
                f"the offered inner state has a wrong size of {manifest.size} bytes"
            )


def put_newest(
    folder: Path, store: Store, run: RunId, layout: Layout, warm_steps: int = 0
) -> OptimizerOffer | None:
    """Store the newest usable state in `folder` as a blob, and return its offer; None if there is
    none. A usable state is complete, and its optimizer has warmed up for at least `warm_steps`
    inner steps, since a joiner that uses the state does not warm up.

    This function blocks. It is safe if the trainer replaces the file in the meantime, since the
    open file keeps its contents.

    Raises StoreError: the blob cannot be stored.
    """
    for step in reversed(inner_format.steps_in(folder)):
        try:
            with inner_format.path_of(folder, step).open("rb", buffering=0) as file:
                return _put(file.fileno(), store, run, layout, warm_steps)
        except (OSError, RemoteProtocolError):
            continue
    return None


def _put(fd: int, store: Store, run: RunId, layout: Layout, warm_steps: int) -> OptimizerOffer:
    header, crc = inner_format.read_header(fd, layout), 0
    if header.warmed < warm_steps:
        raise RemoteProtocolError("this member is still warming up itself")

    def pieces() -> Iterator[bytes]:
        nonlocal crc
        for piece in inner_format.pieces_of(fd):
            crc = zlib.crc32(piece, crc)
            yield piece

    meta = _meta(run, layout, header.step, header.count)
    digest = store.put_blob(KIND, pieces(), meta)
    if crc != header.crc:
        raise RemoteProtocolError("the state was truncated or altered")
    return OptimizerOffer(run, layout.digest, header.step, header.count, digest)


def _meta(run: RunId, layout: Layout, step: int, count: int) -> dict[str, object]:
    return {"run": run, "layout": layout.digest, "step": step, "count": count}
