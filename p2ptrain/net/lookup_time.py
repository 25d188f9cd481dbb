"""Limit the time for which DNS lookups of each peer's host names may occupy threads.

A lookup holds its thread until the system's resolver gives up, which takes half a minute if the
name's servers never answer. A peer can announce new names with every heartbeat. If each name had a
limit of its own, one peer could therefore occupy all threads by announcing one name after another.
So each peer has one budget for the lookups of all its names, which refills slowly. While a peer is
over its budget, its names are not looked up.

A lookup runs to its end in its own thread, which then charges the peer, even if nobody waits for
the answer any more. So several threads call this module. It does not look up names itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId

NAMES_S_MAX = 6.0
"""A peer's budget, in seconds of thread time. No lookup begins for a peer that has used this much.
A normal lookup takes a few hundredths of a second, or five seconds if one packet is lost."""
PAID_BACK_PER_S = 0.2
"""Seconds of thread time that a peer regains in a second. If two lookups of a peer hang for half a
minute, they use 60 s, and the peer's names are not looked up for the next (60 − 6) ÷ 0.2 = 270 s.
So such a peer occupies two threads for a tenth of the time. An honest peer's names are looked up
again a few minutes after its DNS servers recover. Its numeric addresses are never affected."""
AT_ONCE_MAX = 2
"""Maximum number of concurrent lookups for one peer: the number of names that the address book
keeps for a peer."""


@dataclass(slots=True)
class _Account:
    """The thread time that one peer has used. `used_s` is the time used up to `at_s`, without the
    lookups in progress. `begun_s` contains the start times of the lookups in progress."""

    used_s: float
    at_s: float
    begun_s: list[float] = field(default_factory=list)

    def used_by_ended(self, now_s: float) -> float:
        return max(0.0, self.used_s - (now_s - self.at_s) * PAID_BACK_PER_S)

    def used(self, now_s: float) -> float:
        return self.used_by_ended(now_s) + sum(now_s - begun_s for begun_s in self.begun_s)


class LookupTime:
    """The accounts of peers that have not paid back their time. There are about fifty if all ten
    threads (see `dialling`) are busy: they use 10 s a second, and an account regains 0.2 s."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._accounts: dict[PeerId, _Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def is_left(self, peer: PeerId) -> bool:
        """Return whether a lookup for `peer` may begin now."""
        with self._lock:
            return self._is_left(peer)

    @contextmanager
    def spent_by(self, peer: PeerId) -> Iterator[bool]:
        """Charge `peer` for the time that the `with` block takes. Yield whether the peer's budget
        allows a lookup. If not, nothing is charged, and the block must not look up anything."""
        with self._lock:
            allowed, now_s = self._is_left(peer), self._clock_s()
            if allowed:
                self._accounts.setdefault(peer, _Account(0.0, now_s)).begun_s.append(now_s)
        try:
            yield allowed
        finally:
            if allowed:
                self._charge(peer, now_s)

    def _is_left(self, peer: PeerId) -> bool:
        account = self._accounts.get(peer)
        if account is None:
            return True
        few = len(account.begun_s) < AT_ONCE_MAX
        return few and account.used(self._clock_s()) < NAMES_S_MAX

    def _charge(self, peer: PeerId, begun_s: float) -> None:
        with self._lock:
            account, now_s = self._accounts[peer], self._clock_s()
            account.begun_s.remove(begun_s)
            account.used_s = account.used_by_ended(now_s) + now_s - begun_s
            account.at_s = now_s
            self._accounts = {
                each: theirs
                for each, theirs in self._accounts.items()
                if theirs.begun_s or theirs.used(now_s) > 0
            }
