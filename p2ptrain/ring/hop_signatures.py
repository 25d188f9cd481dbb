"""The signatures with which peers answer for the sums and means of a reduce, on one lane.

When you want them: a receiver of a wrong sum has to be able to show who sent it. So a peer signs
each sum that it sends, and the owner of a part signs its mean. There is one signature for each
range that a lane sends of a part (a *run*), however long that is:

    leaf        the blake3 digest of one segment's bytes, as they were sent
    signature   over the list of the leaves; it is sent after the last segment of the run

Leaves are not sent, since both ends compute them. A mean's signature is passed on with the mean, so
a peer that replaces a mean is found by the next one. The signatures follow the data hop by hop: a
peer signs a sum, or passes the owner's signature on, only after it has verified the signatures for
everything that it used. So a peer that has the owner's signature for each part knows that every hop
of the reduce was signed, and every receiver keeps what its neighbours signed.

This module hashes and counts. It does not know what is signed (`Signing`), and it does not send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.ring.blame import Blame, Blamed
from p2ptrain.ring.plan import Runs
from p2ptrain.ring.schedules import Route

SIGNATURE_BYTES = 64
"""Bytes of a signature on the wire."""

LEAF_BYTES = 32
"""Bytes of a leaf."""


class Signing(Protocol):
    """Signs this peer's runs, and verifies those of others. Any thread may call it."""

    def sign(self, start: int, stop: int, leaves: bytes) -> bytes:
        """Return our signature, of SIGNATURE_BYTES, for the elements [start, stop)."""

    def is_signed(
        self, peer: PeerId, start: int, stop: int, leaves: bytes, signature: bytes
    ) -> bool:
        """Return whether `peer` signed these leaves for the elements [start, stop)."""


@dataclass(frozen=True, slots=True)
class SignedRun:
    """The elements [start, stop) of a sum, or of a mean, that `peer` has signed. `leaves` are the
    digests of its segments, one after the other."""

    peer: PeerId
    start: int
    stop: int
    leaves: bytes
    signature: bytes


@dataclass(slots=True)
class _Leaves:
    """The leaves of a run so far. `left` counts those that are missing."""

    found: bytearray
    left: int

    @classmethod
    def of(cls, segments: int) -> _Leaves:
        return cls(bytearray(LEAF_BYTES * segments), segments)

    def put(self, index: int, payload: memoryview) -> None:
        self.found[LEAF_BYTES * index : LEAF_BYTES * (index + 1)] = blake3(payload).digest()
        self.left -= 1


class HopSignatures:
    """The signatures that one lane has made and verified. Used by one thread.

    Peers are numbered by their place in the roster. `number` is always the peer whose signature is
    due: the sender of a sum, or the owner of the part for a mean.
    """

    def __init__(
        self, signing: Signing, peers: Sequence[PeerId], routes: Sequence[Route], runs: Runs
    ) -> None:
        self._signing = signing
        self._peers = peers
        self._routes = routes
        self._runs = runs
        self._leaves: dict[tuple[int, int], _Leaves] = {}
        """The leaves of each run that we made or received, by peer number and part."""
        self._shown: dict[tuple[int, int], tuple[PeerId, bytes]] = {}
        """The signatures that have arrived, with the peers that sent them. A signature can arrive
        before the last segment of its run, on another connection."""
        self._inputs_left = [len(route.sums_from) for route in routes]
        """The number of sums, by part, for which we have no signature yet."""
        self._made: set[int] = set()
        """The parts that we have signed."""
        self.kept: list[SignedRun] = []
        """The runs of other peers whose signatures are valid, and what we have signed."""

    def arrived(self, number: int, part: int, index: int, payload: memoryview) -> bool:
        """Hash a segment that has arrived. Return whether the run's signature is verified by this.
        Raises Blamed."""
        self._of(number, part).put(index, payload)
        return self._check(number, part)

    def signed(self, number: int, part: int, signature: bytes, sender: PeerId) -> bool:
        """Take a signature that `sender` sent. Return whether it is verified. Raises Blamed."""
        self._shown[number, part] = sender, signature
        return self._check(number, part)

    def made(self, me: int, part: int, index: int, payload: memoryview) -> None:
        """Hash a segment that we made: our sum, or the mean of our part."""
        self._of(me, part).put(index, payload)

    def own(self, me: int, part: int) -> bytes | None:
        """Return our signature for a part once it is due: we have made all of the run, and have
        verified the signatures of all sums in it. Return None before that, and afterwards."""
        mine = self._of(me, part)
        if mine.left or self._inputs_left[part] or part in self._made:
            return None
        self._made.add(part)
        start, stop = self._range(part)
        leaves = bytes(mine.found)
        signature = self._signing.sign(start, stop, leaves)
        self.kept.append(SignedRun(self._peers[me], start, stop, leaves, signature))
        return signature

    def signature(self, number: int, part: int) -> bytes:
        """Return a signature that has arrived."""
        return self._shown[number, part][1]

    def _check(self, number: int, part: int) -> bool:
        known, shown = self._of(number, part), self._shown.get((number, part))
        if known.left or shown is None:
            return False
        peer, (start, stop), leaves = self._peers[number], self._range(part), bytes(known.found)
        sender, signature = shown
        if not self._signing.is_signed(peer, start, stop, leaves, signature):
            whose = "its own" if sender == peer else f"the signature of {label(peer)}"
            what = f"{label(sender)} sent a wrong signature for a part of the exchange: {whose}"
            raise Blamed(Blame((sender,), what))
        self.kept.append(SignedRun(peer, start, stop, leaves, signature))
        self._inputs_left[part] -= number in self._routes[part].sums_from
        return True

    def _of(self, number: int, part: int) -> _Leaves:
        key = number, part
        if key not in self._leaves:
            self._leaves[key] = _Leaves.of(len(self._runs[part]))
        return self._leaves[key]

    def _range(self, part: int) -> tuple[int, int]:
        run = self._runs[part]
        return run[0].start, run[-1].stop
