"""The blobs that this node is fetching or has to look at. Written by `outer_state/`."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from p2ptrain.ids import Digest
from p2ptrain.run import DataIndex


@dataclass(slots=True)
class Blobs:
    data: DataIndex | None = None
    """The index of the data blocks; None until it has been fetched."""
    in_flight: set[Digest] = field(default_factory=set)
    """The blobs that are being fetched."""
    scrub_asked: trio.Event = field(default_factory=trio.Event)
    """Set when a scrub of the whole store is wanted; replaced when the scrub starts."""

    def ask_scrub(self) -> None:
        """Start a scrub of the whole store soon. Any task may call this."""
        self.scrub_asked.set()
