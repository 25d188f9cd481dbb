"""A rate limit with a separate allowance for each key: a token bucket.

This module does no I/O: the time is an argument. It does not know what the keys mean.
"""

from __future__ import annotations

from collections.abc import Hashable

KEYS_MAX = 8192
"""Maximum number of keys remembered. In gossip, a key is a pair of a neighbour and an author: 80
neighbours × 100 members are 8,000 keys. Beyond the maximum, the key that has been idle longest is
forgotten; most likely it has its full allowance again anyway."""

_ROUNDING_S = 1e-9
"""Seconds of tolerance for rounding errors: allowances are sums of fractions of a second."""


class Allowance:
    """Allows each key a burst of `at_once`, which refills at `per_s` per second. `now` must never
    decrease."""

    def __init__(self, at_once: float, per_s: float, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._each_s = 1 / per_s
        self._whole_s = at_once / per_s
        self._whole_at: dict[Hashable, float] = {}
        """For each key, when it has its full allowance again. The key that was used most recently
        comes last."""

    def __len__(self) -> int:
        return len(self._whole_at)

    def covers(self, key: Hashable, count: int, now: float) -> bool:
        """Return whether `count` more are allowed, without counting them."""
        return self._after(key, count, now) <= now + self._whole_s + _ROUNDING_S

    def consume(self, key: Hashable, count: int, now: float) -> bool:
        """Return whether `count` more are allowed. If so, count them."""
        after = self._after(key, count, now)
        if after > now + self._whole_s + _ROUNDING_S:
            return False
        self._whole_at.pop(key, None)
        self._whole_at[key] = after
        if len(self._whole_at) > self._keys_max:
            del self._whole_at[next(iter(self._whole_at))]
        return True

    def _after(self, key: Hashable, count: int, now: float) -> float:
        return max(self._whole_at.get(key, now), now) + count * self._each_s
