"""The run's data index, the fetches that are running, and requests to check the store. Written by
`outer_state/`."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.ids import Digest
from p2ptrain.run import DataIndex
from p2ptrain.swarm import KeptConnections


@dataclass(slots=True)
class Blobs:
    data: DataIndex | None = None
    """The index of the run's data blocks; None until this node has fetched it."""
    in_flight: set[Digest] = field(default_factory=set)
    """The digests that are being fetched; for a fetch of single chunks, only the first chunk."""
    fetched_bytes: int = 0
    """The bytes of all chunks that this node has fetched since it started."""
    connections: KeptConnections = field(default_factory=KeptConnections)
    """The connections with sources that are kept between fetches."""
    scrub_asked: trio.Event = field(default_factory=trio.Event)
    """Set to request a scrub (a check of all chunks in the store). Replaced when a scrub starts."""

    def ask_scrub(self) -> None:
        """Request a scrub of the whole store. It starts soon. Any task may call this."""
        self.scrub_asked.set()
