"""An inner optimizer's state that one member gives to joiners: the offer, and the blob it names.

The state is one peer's own; nobody has agreed on it. So the offer is signed by the donor: a joiner
can say from whom it took what, and show it. The blob holds the two vectors of `inner_format`, and
a digest is all that is said of them: their values are for `inner_bounds` to judge.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from p2ptrain.encoding import fields, pack, unpack
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
"""Outer steps, times the number of fragments: a trainer writes its state down when each had its
turn. What a newcomer lacks most is how large gradients are, and that changes slowly."""


@dataclass(frozen=True, slots=True)
class Offer:
    """That the signer's optimizer, at its Load of outer step `step` and after `count` inner steps,
    is blob `digest`.
    """

    run: RunId
    layout: Digest
    step: int
    count: int
    digest: Digest

    def signed(self, donor: Identity) -> bytes:
        """What travels."""
        return Signed.by(donor, KIND, pack(asdict(self))).to_bytes()

    @classmethod
    def read(cls, data: bytes, donor: PeerId) -> Offer:
        """The offer in `data`, which `donor` must have signed.

        Raises RemoteProtocolError.
        """
        document = Signed.from_bytes(data, kind=KIND, bytes_max=OFFER_BYTES_MAX)
        if document.signer != donor:
            raise RemoteProtocolError("an offer was signed by somebody else", peer=donor)
        value = unpack(document.payload, bytes_max=OFFER_BYTES_MAX)
        names = dict.fromkeys(("run", "layout", "digest"), str)
        told = fields(value, **names, step=int, count=int)
        counts = (told["step"], told["count"])
        if not all(isinstance(each, int) and 0 <= each <= COUNT_MAX for each in counts):
            raise RemoteProtocolError("an offer holds a count out of range", peer=donor)
        if told["count"] == 0 or not all(is_digest(told[name]) for name in names):
            raise RemoteProtocolError("an offer names no state", peer=donor)
        return cls(**told)  # type: ignore[arg-type]

    def is_for(self, run: RunId, layout: Layout) -> bool:
        return (self.run, self.layout) == (run, layout.digest)

    def is_current(self, step: int, fragments: int) -> bool:
        """Whether somebody at outer step `step` can use it. Who is behind will be there soon."""
        return self.step <= step and not self.is_too_old(step, fragments)

    def is_too_old(self, step: int, fragments: int) -> bool:
        """Whether nobody at outer step `step`, or later, can begin with it any more."""
        return self.step < step - AGE_STEPS_MAX * fragments

    def check_manifest(self, manifest: BlobManifest, layout: Layout) -> None:
        """What the blob announces, before any more of it is fetched.

        Raises RemoteProtocolError.
        """
        meta = _meta(self.run, layout, self.step, self.count)
        if manifest.kind != KIND or dict(manifest.meta) != meta:
            raise RemoteProtocolError(f"{self.digest[:12]} is not the state that was offered")
        if manifest.size != 2 * vector_bytes(layout):
            raise RemoteProtocolError(f"an inner state of {manifest.size} bytes was offered")


def put_newest(
    folder: Path, store: Store, run: RunId, layout: Layout, warm_steps: int = 0
) -> Offer | None:
    """Store the newest state in `folder` as a blob; None if there is none that is whole, and warm:
    `warm_steps` inner steps after it began knowing nothing. Whoever takes it does not warm up.

    Blocks. The trainer may put a newer one in its place meanwhile: what is open stays what it was.

    Raises StoreError: this store takes no more.
    """
    for step in reversed(inner_format.steps_in(folder)):
        try:
            with inner_format.path_of(folder, step).open("rb", buffering=0) as file:
                return _put(file.fileno(), store, run, layout, warm_steps)
        except (OSError, RemoteProtocolError):
            continue
    return None


def _put(fd: int, store: Store, run: RunId, layout: Layout, warm_steps: int) -> Offer:
    header, crc = inner_format.read_header(fd, layout), 0
    if header.warmed < warm_steps:
        raise RemoteProtocolError("it warms up itself")

    def pieces() -> Iterator[bytes]:
        nonlocal crc
        for piece in inner_format.pieces_of(fd):
            crc = zlib.crc32(piece, crc)
            yield piece

    meta = _meta(run, layout, header.step, header.count)
    digest = store.put_blob(KIND, pieces(), meta)
    if crc != header.crc:
        raise RemoteProtocolError("it was cut short or altered")
    return Offer(run, layout.digest, header.step, header.count, digest)


def _meta(run: RunId, layout: Layout, step: int, count: int) -> dict[str, object]:
    """What the blob says of itself."""
    return {"run": run, "layout": layout.digest, "step": step, "count": count}
