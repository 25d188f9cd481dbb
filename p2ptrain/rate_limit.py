"""Rate limits: a token bucket for each key, or one that several keys share fairly.

This module does no I/O: the time is an argument. It does not know what the keys mean.
"""

from __future__ import annotations

from collections.abc import Hashable

KEYS_MAX = 8192
"""Maximum number of keys remembered. In gossip, a key is a pair of a neighbour and an author: 80
neighbours × 100 members are 8,000 keys. Beyond the maximum, the key that has been idle longest is
forgotten; most likely it has its full allowance again anyway."""

FAIR_KEYS_MAX = 256
"""Maximum number of keys that share one allowance at the same time; further ones are refused."""

_ROUNDING = 1e-9
"""Tolerance for rounding errors in what keys have used."""

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


class FairAllowance:
    """Allows all keys together a burst of `at_once`, which refills at `per_s` per second, and
    divides both among the keys that use it. `now` must never decrease.

    No key may use more than its equal share, and at most half, so that the next key finds some left
    at once. If many keys come one after another, the earlier ones have used more than their later
    share. Then the later ones get what is refilled, until all have used the same. For this, a key
    that was refused counts as well, for the time in which a whole burst refills.

    Use this where keys cost little, or where all keys together use one resource."""

    def __init__(self, at_once: float, per_s: float, *, keys_max: int = FAIR_KEYS_MAX) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._keys_max = keys_max
        self._used: dict[Hashable, float] = {}
        """How much of the burst each key has used that has not been refilled since."""
        self._refused_s: dict[Hashable, float] = {}
        """When each key was last refused."""
        self._at_s = 0.0

    def __len__(self) -> int:
        return len(self._used.keys() | self._refused_s)

    def consume(self, key: Hashable, count: int, now: float) -> bool:
        """Return whether `count` more are allowed. If so, count them. A key that has not used
        anything may exceed its share, but not what is left."""
        self._refill(now)
        used = self._used.get(key, 0.0)
        active = self._used.keys() | self._refused_s | {key}
        if len(active) > self._keys_max:
            return False
        share = max(self._at_once / max(len(active), 2), count)
        in_all = sum(self._used.values()) + count
        if used + count > share + _ROUNDING or in_all > self._at_once + _ROUNDING:
            self._refused_s[key] = now
            return False
        self._used[key] = used + count
        return True

    def note(self, key: Hashable, count: int, now: float) -> None:
        """Count `count`, which cannot be refused, at most up to the whole burst."""
        self._refill(now)
        self._used[key] = min(self._used.get(key, 0.0) + count, self._at_once)

    def _refill(self, now: float) -> None:
        """Divide what was refilled since the last call among the keys that have used something."""
        left = max(now - self._at_s, 0.0) * self._per_s
        self._at_s = max(now, self._at_s)
        since_s = now - self._at_once / self._per_s
        self._refused_s = {key: at for key, at in self._refused_s.items() if at > since_s}
        while left > _ROUNDING and self._used:
            each = min(left / len(self._used), min(self._used.values()))
            left -= each * len(self._used)
            self._used = {
                key: used - each for key, used in self._used.items() if used - each > _ROUNDING
            }
