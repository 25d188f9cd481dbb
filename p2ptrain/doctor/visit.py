"""A visit to a peer that serves the run, for checks that need a peer's help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.run import Run


@dataclass(frozen=True, slots=True)
class Visit:
    """The peer has answered a hello with `run`, whose signature is right."""

    network: Network
    identity: Identity
    """The identity of `network`: the node's own, or a temporary one."""
    home: Path
    is_own: bool
    """Whether `identity` is the node's own. A node that is running here, or that has no key yet, is
    represented by a temporary one."""
    is_running: bool
    """Whether a node is running in the home."""
    peer: PeerId
    run: Run
    is_admitted: bool
    """Whether the run admits this node, according to what the organiser signed."""
