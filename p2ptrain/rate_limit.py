"""How often somebody may have something: so much at once, which comes back with time.

Sans-IO: times come in. It does not know who has what.
"""

from __future__ import annotations

from collections.abc import Hashable

KEYS_MAX = 8192
"""Of gossip: neighbours, each with the members that it brought something of, eighty with a hundred.
Then those idle for longest are forgotten, who most likely have their whole allowance anyway."""

_ROUNDING_S = 1e-9
"""Turns are added up as fractions of a second."""


class Allowance:
    """For each key so many at once, and `per_s` a second from then on. `now` may never go back."""

    def __init__(self, at_once: float, per_s: float) -> None:
        self._each_s = 1 / per_s
        self._whole_s = at_once / per_s
        self._whole_at: dict[Hashable, float] = {}
        """When each will have its whole allowance again; the one that took last comes last."""

    def __len__(self) -> int:
        return len(self._whole_at)

    def covers(self, key: Hashable, count: int, now: float) -> bool:
        return self._after(key, count, now) <= now + self._whole_s + _ROUNDING_S

    def take(self, key: Hashable, count: int, now: float) -> bool:
        """Whether `count` more are allowed; then they are noted."""
        after = self._after(key, count, now)
        if after > now + self._whole_s + _ROUNDING_S:
            return False
        self._whole_at.pop(key, None)
        self._whole_at[key] = after
        if len(self._whole_at) > KEYS_MAX:
            del self._whole_at[next(iter(self._whole_at))]
        return True

    def _after(self, key: Hashable, count: int, now: float) -> float:
        return max(self._whole_at.get(key, now), now) + count * self._each_s
