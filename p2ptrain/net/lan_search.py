"""Look for peers in the local network by mDNS, without announcing this node there.

With `--mdns`, libp2p looks and announces from the start. This search starts later, when a node has
no other way to the run. It records what it hears in the same way: as hearsay, which anybody in the
local network can invent, and which only leads to dials. The dialled peer proves its id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import trio
from libp2p.discovery.mdns.mdns import MDNSDiscovery

from p2ptrain.ids import PeerId
from p2ptrain.net.discovery import mdns_neighbours

log = logging.getLogger(__name__)

CLOSE_S = 2.0
"""Deadline in seconds of the end of the search. If a peer has just been heard of, libp2p's mDNS
waits in its thread for the details, for 15 s if that peer has gone. The thread does not keep the
process alive."""

Open = Callable[[PeerId], Callable[[], None]]
"""`open_search(me)` starts a search, and returns the function that ends it. Raises OSError."""


class LanSearch:
    """The search of one node. Close it at the end of the node."""

    def __init__(
        self,
        me: PeerId,
        found: Callable[[PeerId, list[str]], None],
        open_search: Open | None = None,
    ) -> None:
        self._me = me
        self._found = found
        self._open = open_search or _open_search
        self._handlers = ExitStack()
        self._end: Callable[[], None] | None = None

    @property
    def is_running(self) -> bool:
        return self._end is not None

    async def start(self) -> bool:
        """Search from now on, and return True. Return False if this machine has no network in which
        it could search. The first answers take about a second."""
        if self.is_running:
            return True
        with ExitStack() as stack:
            stack.enter_context(mdns_neighbours(self._me, self._found))
            try:
                self._end = await trio.to_thread.run_sync(self._open, self._me)
            except OSError as exc:
                log.debug("the local network cannot be searched: %r", exc)
                return False
            self._handlers = stack.pop_all()
        return True

    async def close(self) -> None:
        """End the search. Return after CLOSE_S seconds at the latest."""
        self._handlers.close()
        end, self._end = self._end, None
        if end is not None:
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
                await trio.to_thread.run_sync(
                    end,
                    abandon_on_cancel=True,  # type: ignore[call-arg]  # newer than trio's stubs
                )


class _Asker:
    """Takes the place of libp2p's swarm, from which its mDNS needs the peer id and the peerstore.
    Addresses that mDNS finds must not go to that peerstore: it is not bounded, and another thread
    writes."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.peerstore = self

    def get_peer_id(self) -> PeerId:
        return self._me

    def add_addrs(self, *_: object) -> None: ...

    def clear_addrs(self, *_: object) -> None: ...


def _open_search(me: PeerId) -> Callable[[], None]:
    # libp2p looks for peers as soon as this object exists. Only its `start` would announce us.
    asker: Any = _Asker(me)
    search = MDNSDiscovery(asker)

    def end() -> None:
        search.listener.stop()
        search.zeroconf.close()

    return end
