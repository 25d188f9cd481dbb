"""DNS lookups in their own threads.

A lookup occupies its thread until the system's resolver gives up, after half a minute or more, even
if nobody waits for the answer any longer. In a reported attack, lookups at DNS servers that never
answer occupied all of trio's 40 shared threads, so votes had to wait. Therefore lookups have a few
reserved threads, and lookups of names that peers announce cannot use the threads for the user's
lookups. All names of one peer share one budget of thread time (`lookup_time`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from p2ptrain.net.addresses import Address
from p2ptrain.net.faults import DialFailed
from p2ptrain.net.lookup_time import LookupTime

LOOKUP_S_MAX = 3.0
"""Seconds that a dial waits for a name, including the wait for a thread. A resolver usually answers
within a second; if it does not, it asks the DNS server again after five seconds."""
HOSTS_MAX = 3
"""Maximum number of IP addresses tried per name. Each address gets a share of the deadline."""

_FAMILIES = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}


def look_up(address: Address) -> list[str]:
    """Return the IP addresses of the host of `address`. Raises socket.gaierror, UnicodeError."""
    family = _FAMILIES.get(address.kind, socket.AF_UNSPEC)
    found = socket.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:HOSTS_MAX]


class Resolver:
    """Looks up names in at most `threads` threads. If `time` is given, the time of each lookup is
    charged to the peer that the address names, because that peer announced the name. `look_up`
    makes one lookup."""

    def __init__(
        self,
        threads: int,
        time: LookupTime | None = None,
        look_up: Callable[[Address], list[str]] = look_up,
    ) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._time = time
        self._call = look_up

    async def resolve(self, address: Address, ends: float) -> list[str]:
        """Return the IP addresses of the host of `address`, at least one. Raises DialFailed with
        the code NET-DNS."""
        if not address.is_name:
            return [address.host]
        if self._time is not None and address.peer and not self._time.is_left(address.peer):
            raise _used_up(address)
        found: list[str] = []
        with trio.move_on_at(min(ends, trio.current_time() + LOOKUP_S_MAX)) as scope:
            try:
                found = await trio.to_thread.run_sync(
                    self._look_up,
                    address,
                    abandon_on_cancel=True,  # type: ignore[call-arg]  # newer than trio's stubs
                    limiter=self._limiter,
                )
            except (socket.gaierror, UnicodeError) as exc:
                reason = exc.strerror if isinstance(exc, socket.gaierror) else "no such name"
                raise DialFailed(address, "NET-DNS", f"DNS: {reason}") from exc
        if scope.cancelled_caught:
            raise DialFailed(address, "NET-DNS", "DNS: no answer")
        return found

    def _look_up(self, address: Address) -> list[str]:
        """Look up `address`. This runs in a thread, and charges the peer even if nobody waits for
        the result any more."""
        if self._time is None or address.peer is None:
            return self._call(address)
        with self._time.spent_by(address.peer) as allowed:
            if not allowed:
                raise _used_up(address)
            return self._call(address)


def _used_up(address: Address) -> DialFailed:
    return DialFailed(address, "NET-DNS", "DNS: lookups of this peer's names took too long before")
