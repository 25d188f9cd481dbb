"""Peers that wait for admission. Written by `joining/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.run import SignedDenial


@dataclass(frozen=True, slots=True)
class Applicant:
    """A peer that waits for admission. `first_s` and `asked_s` are when it first and last asked (by
    `Context.now`). `site` is the address that it asked from, or says which peer forwarded its
    signed request; `via` is that peer. `note` is its message to the organiser. `device` and `reach`
    are its own word about its machine (`joining/stated_machine`); "" if it does not say so."""

    asked_s: float
    site: str
    signed: bytes
    first_s: float = 0.0
    note: str = ""
    via: PeerId | None = None
    device: str = ""
    reach: str = ""


@dataclass(slots=True)
class JoinRequests:
    pending: dict[PeerId, Applicant] = field(default_factory=dict)
    """The waiting peers. The one whose last request is oldest comes first."""
    pending_max: int = 256
    """Maximum number of requests remembered. Requests of admitted peers are removed. If the table
    is full, a request that is no longer repeated is removed, or one from the busiest address."""
    forget_s: float = 60.0
    """Seconds after which a request that was not repeated may be dropped; a waiting newcomer
    repeats it every 15 s. Otherwise anybody could fill the table by asking once from each of many
    identities."""
    denials: dict[PeerId, SignedDenial] = field(default_factory=dict)
    """Denials by peer. The organiser's node has all that the organiser signed. Other nodes have
    only those of waiting peers."""
