"""Average the inner optimizer states that members sent to this joiner, and publish the mean.

Each state must be within the bounds that training can reach. Their mean is then within the same
bounds: if every state satisfies |m| ≤ c √v, their mean does too, since the square root is concave.
This module does not know which peer sent a state, or how it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

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
"""Number of bytes read from each of the two files at a time. Their float64 sum takes more
memory."""


@dataclass(slots=True)
class AveragedState:
    """The mean of the added states, in a file in `folder`. Trainers ignore the file before
    `publish`.

    Use it as a context manager: an unpublished mean is deleted at the end. The methods block.
    """

    folder: Path
    store: Store
    layout: Layout
    inner: InnerSpec
    offers: list[OptimizerOffer] = field(default_factory=list)

    def __enter__(self) -> AveragedState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mean.unlink(missing_ok=True)

    def add(self, offer: OptimizerOffer) -> None:
        """Add a blob that is complete in the store to the mean. A failure leaves the mean
        unchanged.

        Raises:
            RemoteProtocolError: training cannot produce such a state.
            ChunkMissing, ChunkCorrupt: the store has lost part of it in the meantime.
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
        """Publish the mean as the state for the next trainer. Its outer step is that of the newest
        state, and its number of inner steps is the average. Raises OSError.
        """
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
        """Write the blob to the file `new`. Raises RemoteProtocolError if training cannot produce
        such a state."""
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
