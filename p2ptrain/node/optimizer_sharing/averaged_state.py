"""What a joiner begins with: the mean of the inner optimizers that members gave, or the one given.

Each is held to what training can make before it counts. Their mean is within the same bounds: sums
of squares average, and where every |m| ≤ c √v their means are so too, since a root is concave.
Nothing here knows who gave what, or how it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.node.optimizer_sharing.optimizer_offer import Offer
from p2ptrain.state import Layout
from p2ptrain.store import Store
from p2ptrain.trainer.formats import inner_format
from p2ptrain.trainer.formats.inner_bounds import check
from p2ptrain.trainer.formats.inner_format import HEADER_BYTES

PIECE_BYTES = 2**22
"""Of each of two files at a time; their sum is made in float64, eight times as much."""


@dataclass(slots=True)
class Donated:
    """States that have been added, as a file in `folder` that no trainer sees before `publish`.

    Use it as a context: what was not published is gone afterwards. Its methods block.
    """

    folder: Path
    store: Store
    layout: Layout
    inner: InnerSpec
    offers: list[Offer] = field(default_factory=list)

    def __enter__(self) -> Donated:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mean.unlink(missing_ok=True)

    def add(self, offer: Offer) -> None:
        """Count the blob, which is here whole, into the mean. What fails changes nothing.

        Raises:
            RemoteProtocolError: no training makes such a state.
            ChunkMissing, ChunkCorrupt: the store has lost some of it meanwhile.
            OSError: the disk takes no more.
        """
        new = self.folder / "donating"
        try:
            self._write(offer, new)
            if self.offers:
                _fold(self._mean, new, len(self.offers))
            new.replace(self._mean)
        finally:
            new.unlink(missing_ok=True)
        self.offers.append(offer)

    def publish(self) -> None:
        """Make the mean the state that the next trainer takes up: of the newest one's outer step,
        and as old as they are on average. Raises OSError.
        """
        assert self.offers, "nobody gave anything"
        step = max(offer.step for offer in self.offers)
        count = sum(offer.count for offer in self.offers) // len(self.offers)
        with self._mean.open("r+b", buffering=0) as file:
            inner_format.write_header(file.fileno(), self.layout, step, count)
        inner_format.publish(self._mean, self.folder, step)

    @property
    def _mean(self) -> Path:
        return self.folder / "donated"

    def _write(self, offer: Offer, new: Path) -> None:
        """The blob as a file, if training can have made it."""
        manifest = self.store.manifest(offer.digest)
        offer.check_manifest(manifest, self.layout)
        inner_format.reserve(new, self.layout)
        with new.open("r+b", buffering=0) as file:
            offset = HEADER_BYTES
            for index, chunk in enumerate(manifest.chunks):
                data = self.store.get_chunk(chunk)
                if len(data) != manifest.chunk_size(index):
                    raise RemoteProtocolError("a chunk of a state has another length than it says")
                inner_format.write_all(file.fileno(), memoryview(data), offset)
                offset += len(data)
            check(file.fileno(), self.layout, self.inner)


def _fold(mean: Path, new: Path, count: int) -> None:
    """Make `new` the mean of itself and of the `count` states whose mean is in `mean`.

    In float64: where nothing is clipped, sums can be more than fp32 holds.
    """
    with mean.open("rb") as before, new.open("r+b", buffering=0) as after:
        before.seek(HEADER_BYTES)
        offset = HEADER_BYTES
        while piece := before.read(PIECE_BYTES):
            after.seek(offset)
            both = [np.frombuffer(each, "<f4") for each in (piece, after.read(len(piece)))]
            wide = (count * both[0].astype(np.float64) + both[1]) / (count + 1)
            data = wide.astype("<f4").tobytes()
            inner_format.write_all(after.fileno(), memoryview(data), offset)
            offset += len(data)
