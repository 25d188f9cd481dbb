"""The inputs from which `assembly` makes a node: configuration, home, identity, run and network."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity
from p2ptrain.net import Network
from p2ptrain.observe.journal import Journal
from p2ptrain.run import Run
from p2ptrain.store import Disk


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Made by `main` once the node is connected and admitted. `assembly` makes the parts from
    it."""

    config: NodeConfig
    home: Home
    journal: Journal
    identity: Identity
    run: Run
    admission: Admission
    network: Network
    disk: Disk | None = None
    """The disk for the store and the ledger's logs; None means this machine's disk."""
    incarnation: int = 0
    """The incarnation of this process; see `incarnations`."""
