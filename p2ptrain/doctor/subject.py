"""The subject of an examination, and the notes of its checks for later checks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig

if TYPE_CHECKING:
    from p2ptrain.portmap import Gateway, Standing
    from p2ptrain.run import Run


@dataclass(frozen=True, slots=True)
class Subject:
    """A node that is not running: its settings, and this machine."""

    config: NodeConfig
    explanations: Mapping[str, str] = field(default_factory=dict)
    """An explanation of each error code."""
    python: str = sys.executable
    """The interpreter in which torch is tried out."""

    @property
    def home(self) -> Home:
        """The paths of the node's files. No file need exist."""
        return Home(self.config.home, to_make=False)

    @property
    def folder(self) -> Path:
        """The home or, if it does not exist yet, the existing folder in which it will be made."""
        home = self.config.home
        # Unlike Path.is_dir, this function does not raise an error below a folder of another user.
        return next(each for each in (home, *home.parents) if os.path.isdir(each))


@dataclass(frozen=True, slots=True)
class OpenMapping:
    """The router at `gateway` opened both ports at our request. They are closed again."""

    gateway: Gateway
    standing: Standing


@dataclass(slots=True)
class Learned:
    """Notes of the checks for later checks of their lane, and for those of the next phase. Each
    field has one writer."""

    began_s: float = field(default_factory=time.monotonic, compare=False)
    """When the examination began, by the monotonic clock."""

    run_here: Run | None = None
    """The run that the home contains. Written by `home`."""
    run_there: Run | None = None
    """The run that a bootstrap peer serves. Written by `bootstrap`."""
    operations_per_s: float | None = None
    """Floating-point operations per second in matrix products. Written by `torch_trial`."""
    are_ports_free: bool = False
    """Whether a node could listen on both ports. Written by `ports`."""
    mapping: OpenMapping | None = None
    """The ports that the router opened. Written by `port_mapping`."""
    down_bytes_per_s: float | None = None
    """Rate from a member to this machine. Written by `transfer`."""
    up_bytes_per_s: float | None = None
    """Rate from this machine to a member. Written by `transfer`."""

    @property
    def run(self) -> Run | None:
        """The run that a node would take part in."""
        return self.run_here or self.run_there
