"""A visit to a peer that serves the run, and to other members, for checks that need their help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from p2ptrain.config.node import NodeConfig
from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.run import Run


@dataclass(frozen=True, slots=True)
class Witness:
    """A connected peer that the organiser vouches for, and its data plane. `site` is the address
    group of the connection. The witness knows the certificate of our data plane."""

    peer: PeerId
    site: str
    endpoint: Endpoint
    is_elsewhere: bool
    """Whether the witness is outside this machine's local network, so that it can tell how the
    internet sees this machine."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The peer has answered a hello with `run`, whose signature is right. The run admits this node,
    and `network` has the node's own identity."""

    network: Network
    identity: Identity
    credentials: Credentials
    config: NodeConfig
    run: Run
    witnesses: tuple[Witness, ...]
    """The peers that were asked for help first come first. There is at least one."""

    @property
    def home(self) -> Path:
        return self.config.home

    @property
    def far(self) -> tuple[Witness, ...]:
        """The witnesses outside the local network, one for each site."""
        return tuple({each.site: each for each in self.witnesses if each.is_elsewhere}.values())
