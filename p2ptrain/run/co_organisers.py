"""The co-organisers of a run: further peers whose keys sign its allowlists and amendments.

A manifest may name them, together with the number of organisers that must sign each document. All
organisers have the same rights; the one that published the run has only signed the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId

CO_ORGANISERS_MAX = 7
"""Maximum number of organisers besides the publisher. Every node checks every signature of every
document, and a group of eight can still agree by hand."""

ORGANISERS_MAX = 1 + CO_ORGANISERS_MAX


@dataclass(frozen=True, slots=True)
class CoOrganisers:
    """`signatures_min` is the number of distinct organisers (k) that must sign an allowlist or an
    amendment. The publisher counts as one of them."""

    peers: tuple[PeerId, ...] = ()
    signatures_min: int = 1

    def __post_init__(self) -> None:
        if len(self.peers) > CO_ORGANISERS_MAX:
            raise ValueError(f"{len(self.peers)} co-organisers exceed {CO_ORGANISERS_MAX}")
        if not all(map(is_peer_id, self.peers)):
            raise ValueError("a co-organiser is not a peer id")
        if len(set(self.peers)) != len(self.peers):
            raise ValueError("a co-organiser is listed twice")
        if type(self.signatures_min) is not int or not 1 <= self.signatures_min <= self.number:
            raise ValueError(
                f"signatures_min is {self.signatures_min}, but the run has {self.number} "
                "organisers, the publisher included"
            )

    @property
    def number(self) -> int:
        """The number of organisers, the publisher included."""
        return 1 + len(self.peers)


NO_CO_ORGANISERS = CoOrganisers()
