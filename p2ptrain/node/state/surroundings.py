"""The inputs from which a node is assembled: configuration, home, identity, run and network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity
from p2ptrain.net import Network
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.run import Run
from p2ptrain.store import Disk

if TYPE_CHECKING:
    from p2ptrain.node.state.timing import Timing


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Made by `main` once the node is connected and admitted. `assembly` makes the context from
    it."""

    config: NodeConfig
    home: Home
    journal: Journal
    identity: Identity
    run: Run
    admission: Admission
    network: Network
    timing: Timing
    disk: Disk | None = None
    """The disk for the store and the ledger's logs; None means this machine's disk."""
    incarnation: int = 0
    """The incarnation of this process; see `incarnations`."""
    doubts: tuple[Caution, ...] = ()
    """Cautions found in this machine before the start."""
    members_answered: bool = True
    """Whether this node could ask members, when it started, if another process has its identity. If
    it could not, the ledger's first messages wait until it has asked."""
    clock: Callable[[], float] = trio.current_time
    """The local monotonic clock, in seconds."""
