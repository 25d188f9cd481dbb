"""Look for the run of an invitation in the local network, once none of its addresses answers.

An invitation can be older than the addresses in it, while a member runs in the same house. Anybody
in the local network can answer. So only a peer that serves exactly the run of the invitation
counts, and everything that it sends later is checked like the data of any stranger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import P2PTrainError
from p2ptrain.net import Network
from p2ptrain.node.joining.find_run import LAN_LOOK_S, PrintLine, fetch_run, near_addresses
from p2ptrain.run import Run

FIRST_LOOK_S = 5.0
"""Seconds in which a peer in the local network must be found, before the failure of the addresses
is shown. mDNS needs about one second, and the peer's answer another one."""

Start = Callable[[], Awaitable[bool]]
"""Starts the search; False if this machine has no network in which it could search."""


async def look_nearby(network: Network, print_line: PrintLine, start: Start | None = None) -> bool:
    """Start to look for peers in the local network, and say so, unless that was done before. Return
    whether the search runs."""
    if network.lan.is_running:
        return True
    if not await (start or network.lan.start)():
        print_line("looking for peers in the local network is not possible on this machine")
        return False
    print_line(
        "no address in your invitation leads to the run; looking in your local network too, for "
        "nodes that were started with --mdns (--no-mdns switches this off)"
    )
    return True


@dataclass(slots=True)
class NearbyRun:
    """Looks for the run of the user's invitation in the local network."""

    network: Network
    config: NodeConfig
    known: Collection[str]
    """The addresses of the invitation, and those of peers met before. They are asked elsewhere."""
    print_line: PrintLine
    look_s: float = LAN_LOOK_S
    start: Start | None = None
    runs: bool = field(default=False, init=False)

    async def begin(self) -> None:
        """Start to look, unless the user gave no invitation, or switched mDNS off."""
        if self.config.searches_lan and not self.runs:
            self.runs = await look_nearby(self.network, self.print_line, self.start)

    async def find(self, at_most_s: float) -> Run | None:
        """Wait `at_most_s` seconds, and return early with the run if a peer serves it. Each address
        is tried once."""
        until, tried = trio.current_time() + at_most_s, set(self.known)
        while True:
            heard = near_addresses(self.network) if self.runs else []
            if ways := [each for each in heard if each not in tried]:
                tried.update(ways)
                if run := await self._served_at(ways):
                    self.print_line(
                        "found a peer in your local network that serves exactly this run; "
                        "everything that it sends is checked"
                    )
                    return run
            if (left_s := until - trio.current_time()) <= 0:
                return None
            await trio.sleep(min(self.look_s, left_s) if self.runs else left_s)

    async def _served_at(self, ways: list[str]) -> Run | None:
        try:
            return await fetch_run(self.network, self.config, ways)
        except P2PTrainError:
            return None  # Another run, or no answer. The addresses are only hearsay.
