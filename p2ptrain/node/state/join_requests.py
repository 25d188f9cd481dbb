"""Peers that wait for admission. Written by `joining/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId


@dataclass(frozen=True, slots=True)
class Applicant:
    """A peer that waits for admission: when it last asked (by `now`), the site it asked from, and
    its signed request."""

    asked_s: float
    site: str
    signed: bytes


@dataclass(slots=True)
class JoinRequests:
    pending: dict[PeerId, Applicant] = field(default_factory=dict)
    """The peers that wait; the oldest request comes first."""
    pending_max: int = 256
    """How many requests are remembered. Requests that were settled or are not repeated make
    room."""
    forget_s: float = 60.0
    """A newcomer asks every 15 s. A request that was not repeated for this long may be dropped:
    anybody can ask once from each of many identities."""
