"""The inputs from which a node is assembled: configuration, home, identity, run and network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity
from p2ptrain.net import Network
from p2ptrain.node.state.timing import Timing
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.run import Run
from p2ptrain.store import Disk


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Made by `startup` once the node is admitted; `assembly` makes the context."""

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
    """The number of this start of the identity; see `peers/incarnations`."""
    doubts: tuple[Caution, ...] = ()
    """Warnings about this machine's resources, found before the node started."""
    members_answered: bool = True
    """Whether this node, at its start, asked at least one peer whether another process uses its
    identity. If not, the ledger's first messages wait until the node has asked."""
    clock: Callable[[], float] = trio.current_time
    """The local monotonic clock, in seconds."""
    draw: random.Random = field(default_factory=random.SystemRandom)
    """See `Context.draw`."""
