"""How long the names of each peer may occupy threads: a budget for all names of one peer together.

A lookup holds its thread until the system's resolver gives up, which takes half a minute if the
name's servers never answer. A peer can announce new names with every heartbeat. With a limit for
each name alone, one peer could therefore hold all threads, one name after the other. Here the time
of all its names adds up. It is paid back slowly, and meanwhile its names are not looked up.

A thread reports when its lookup ends, even if nobody waits for the answer any more. So this module
is called from several threads. It does not know how names are looked up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId

NAMES_S_MAX = 6.0
"""Seconds of thread time that the names of a peer may have used when another lookup begins. A sound
lookup takes a few hundredths of a second, or five seconds if one packet is lost."""
PAID_BACK_PER_S = 0.2
"""Seconds of thread time that a peer regains in a second. A peer whose two names hang for half a
minute waits four and a half minutes. It holds its two threads for a tenth of the time. An honest
peer has its names back some minutes after its servers recover, and its other addresses always."""
AT_ONCE_MAX = 2
"""Lookups of one peer under way: as many as the names that the address book keeps of it."""


@dataclass(slots=True)
class _Account:
    """`used_s` as of `at_s`, without the lookups under way; `begun_s` has their beginnings."""

    used_s: float
    at_s: float
    begun_s: list[float] = field(default_factory=list)

    def used(self, now_s: float) -> float:
        under_way_s = sum(now_s - begun_s for begun_s in self.begun_s)
        paid_back_s = (now_s - self.at_s) * PAID_BACK_PER_S
        return max(0.0, self.used_s - paid_back_s) + under_way_s


class LookupTime:
    """The accounts of all peers. A peer with a whole budget has none, so only as many peers have
    one as the threads can serve while a debt is paid back: about fifty.
    """

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
        """Charge `peer` for the time that the block takes. The value says whether its budget allows
        a lookup; if not, the block must end at once, and nothing is charged.
        """
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
            paid_back_s = (now_s - account.at_s) * PAID_BACK_PER_S
            account.used_s = max(0.0, account.used_s - paid_back_s) + now_s - begun_s
            account.at_s = now_s
            self._accounts = {
                each: theirs
                for each, theirs in self._accounts.items()
                if theirs.begun_s or theirs.used(now_s) > 0
            }
