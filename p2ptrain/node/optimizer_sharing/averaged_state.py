"""Average the inner optimizer states that members sent to this joiner, and publish the mean.

Each state must be within the bounds of what training can produce. Then the mean is too: if the
optimizer's moments satisfy |m| ≤ c √v in every state, they also do in the mean, as √ is concave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ipc.trainer_config import InnerSpec
from p2ptrain.node.optimizer_sharing.optimizer_offer import OptimizerOffer
from p2ptrain.state import Layout
from p2ptrain.store import Store
from p2ptrain.trainer.formats import inner_format
from p2ptrain.trainer.formats.inner_bounds import check
from p2ptrain.trainer.formats.inner_format import HEADER_BYTES

PIECE_BYTES = 2**22
"""Number of bytes read at a time from each of two files. The float64 sum temporarily takes several
times as much memory."""


@dataclass(slots=True)
class AveragedState:
    """The mean of the added states, in a file in `folder` that trainers ignore until `publish`.

    Always call `close`, even after an error. The methods block."""

    folder: Path
    store: Store
    layout: Layout
    inner: InnerSpec
    offers: list[OptimizerOffer] = field(default_factory=list)

    def close(self) -> None:
        """Delete the mean, unless it was published."""
        self._mean.unlink(missing_ok=True)

    def add(self, offer: OptimizerOffer) -> None:
        """Include the offered state in the mean. The store must hold the complete blob. An error
        leaves the mean unchanged.

        Raises:
            RemoteProtocolError: training cannot produce such a state.
            ChunkMissing, ChunkCorrupt: the store has lost part of the blob in the meantime.
            OSError: the disk is full or fails.
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
        """Publish the mean as the state for the next trainer. Its outer step is the newest one of
        the added states, and its number of inner steps is their average. Raises OSError."""
        assert self.offers, "there are no states to publish"
        step = max(offer.step for offer in self.offers)
        count = sum(offer.count for offer in self.offers) // len(self.offers)
        with self._mean.open("r+b", buffering=0) as file:
            inner_format.write_header(file.fileno(), self.layout, step, count)
        inner_format.publish(self._mean, self.folder, step)

    @property
    def _mean(self) -> Path:
        return self.folder / "donated"

    def _write(self, offer: OptimizerOffer, new: Path) -> None:
        """Write the blob to the file `new` and check its values. Raises the errors of `add`."""
        manifest = self.store.manifest(offer.digest)
        offer.check_manifest(manifest, self.layout)
        inner_format.reserve(new, self.layout)
        with new.open("r+b", buffering=0) as file:
            offset = HEADER_BYTES
            for index, chunk in enumerate(manifest.chunks):
                data = self.store.get_chunk(chunk)
                if len(data) != manifest.chunk_size(index):
                    raise RemoteProtocolError("a chunk of a state has the wrong length")
                inner_format.write_all(file.fileno(), memoryview(data), offset)
                offset += len(data)
            check(file.fileno(), self.layout, self.inner)


def _fold(mean: Path, new: Path, count: int) -> None:
    """Replace `new` with the mean of `new` and of the `count` states that `mean` averages.

    The sum is computed in float64: without gradient clipping, it can overflow fp32.
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
