"""Inner optimizer states that members give to joiners. Written by `optimizer_sharing/`."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import Digest


@dataclass(slots=True)
class OptimizerSharing:
    offered: dict[Digest, float] = field(default_factory=dict)
    """For each blob that this node offers or fetches: until when (by `Context.now`) it is kept."""
    inner_from: str = ""
    """The members whose inner optimizer states this node started from, in words for the status."""

    def offer(self, digest: Digest, *, now_s: float, keep_s: float) -> None:
        """Keep the blob's chunks for `keep_s` seconds. Remove expired offers."""
        self.offered = {each: until for each, until in self.offered.items() if until > now_s}
        self.offered[digest] = now_s + keep_s

    def withdraw(self, digest: Digest) -> None:
        self.offered.pop(digest, None)

    def kept(self, now_s: float) -> tuple[Digest, ...]:
        """Return the blobs whose chunks must still be kept."""
        return tuple(digest for digest, until in self.offered.items() if until > now_s)
