"""The relay of this node, through which peers that cannot connect to each other exchange bytes.
Written by `relaying/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane.relaying import RelayServer, RelayTotals


@dataclass(slots=True)
class Relaying:
    server: RelayServer | None = None
    """None if this node does not relay."""

    @property
    def offered(self) -> int:
        """The number of edges that this node offers to relay, free or in use."""
        return 0 if self.server is None else self.server.offered

    @property
    def totals(self) -> RelayTotals | None:
        """The bytes that this node has relayed; None if it does not relay."""
        return None if self.server is None else self.server.totals()
