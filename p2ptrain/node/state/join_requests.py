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
