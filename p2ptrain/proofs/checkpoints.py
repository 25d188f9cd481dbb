"""The proof of training: a chain of checkpoints, of which a beacon opens one link.

A prover cuts the inner steps of an outer step into `LINKS` links, and keeps a checkpoint at each
cut. It publishes only their digests, before anybody knows which link will be opened. To open a
link, it hands over two checkpoints. An auditor starts from the first, repeats the inner steps on
the leased blocks, and compares where it ends with the second.

    θ ──link 0── checkpoint 1 ──link 1── checkpoint 2 ──link 2── checkpoint 3 ──link 3── the end

    at θ: the moments that ended the last chain        at the end: the contribution

A checkpoint has two halves with a digest each: the displacement θ − weights, as the run's codec
writes it, and the state of the inner optimizer in 2 bytes a parameter (`moments`). Link 0 starts
at θ, which everybody has, **with the optimizer state that ended the previous chain**. This rule is
half of the proof: with an invented optimizer state, honest inner steps lead anywhere, and replay
perfectly. The displacement at the end of the last link is the contribution itself.

An open link proves only that its own inner steps were made on these blocks, from this start, within
the tolerance. A peer that fakes a share f of its links is caught with
probability f for each opened link. This module does not train: the caller passes displacements. No
node makes or checks chains yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, is_digest

Floats = NDArray[np.float32]

LINKS = 4

DISTANCE_MAX = 0.1
"""Limit on the relative distance between the auditor's end of a link and the prover's."""

COLD_DISTANCE_MAX = 0.18
"""The limit where the link starts with an empty optimizer state. There, AdamW moves each element by
about the learning rate, in the direction of the gradient's sign, and rounding decides the signs of
small gradients."""

_DRAW = b"p2ptrain draw 1\n"
_RUN = 1 << 16
"""Elements that are compared together, so that temporary arrays stay small."""


def displacement_digest(payload: bytes) -> Digest:
    """Return the digest of a displacement, as the run's codec writes it. The digest of the last one
    of a chain is the digest of the contribution that a claim contains."""
    return Digest(blake3(payload).hexdigest())


@dataclass(frozen=True, slots=True)
class Chain:
    """The digests that a claim contains. `displacements` are those after each link; the last is
    that of the contribution. `moments` are those before the first link and after each link.

    Raises RemoteProtocolError: a digest is malformed, or the numbers do not fit.
    """

    displacements: tuple[Digest, ...]
    moments: tuple[Digest, ...]

    def __post_init__(self) -> None:
        links = len(self.displacements)
        if not 1 <= links <= LINKS or len(self.moments) != links + 1:
            raise RemoteProtocolError(f"a chain of checkpoints has 1 to {LINKS} links")
        if not all(map(is_digest, (*self.displacements, *self.moments))):
            raise RemoteProtocolError("a chain of checkpoints contains a malformed digest")

    @property
    def links(self) -> int:
        return len(self.displacements)


def link_blocks(blocks: int) -> tuple[range, ...]:
    """Return the blocks of each link, for a peer that trained this number of blocks. The links are
    as even as can be. With fewer than `LINKS` blocks, each block is one link."""
    assert blocks > 0
    links = min(LINKS, blocks)
    cuts = [blocks * number // links for number in range(links + 1)]
    return tuple(range(first, stop) for first, stop in pairwise(cuts))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and its reason in words. `exact` says that the reason is a proof, which does not
    depend on a tolerance."""

    passed: bool
    words: str
    exact: bool = False


def check_start(chain: Chain, previous: Chain | None, empty: Digest) -> Verdict:
    """Return whether `chain` starts with an optimizer state that the peer may have.

    This is the state that ended the peer's `previous` chain, or the `empty` state of a peer that
    starts or restarts: an empty state cannot be forged. A state that was taken over from other
    members must end a chain too: pass the chain that `donated` it as `previous`.
    """
    start = chain.moments[0]
    if previous is not None and start == previous.moments[-1]:
        return Verdict(True, "the chain starts with the optimizer state that ended the last one")
    if start == empty:
        return Verdict(True, "the chain starts with an empty optimizer state")
    return Verdict(False, "the chain starts with an optimizer state that no chain ended with", True)


def check_end(chain: Chain, contribution: Digest) -> Verdict:
    """Return whether the chain ends with the contribution, whose `displacement_digest` is given."""
    if chain.displacements[-1] == contribution:
        return Verdict(True, "the chain ends with the contribution")
    return Verdict(False, "the chain ends with something other than the contribution", True)


def drawn(purpose: str, beacon: Digest, *words: str) -> int:
    """Return a number below 2^64 that nobody knows before the beacon. The beacon is the digest of a
    certified ledger entry. Each use has its own purpose."""
    said = "\n".join((purpose, beacon, *words)).encode()
    return int.from_bytes(blake3(_DRAW + said).digest(8), "big")


def opened_link(beacon: Digest, peer: str, links: int, share: Fraction) -> int | None:
    """Return the link of `peer` that the beacon opens, or None if it opens none of them. `share` is
    the probability that it opens one."""
    assert 0 <= share <= 1
    if drawn("audit", beacon, peer) * share.denominator >= share.numerator << 64:
        return None
    return drawn("link", beacon, peer) * links >> 64


def link_distance(start: Floats, end: Floats, repeated: Floats) -> float:
    """Return how far the prover's end of a link is from the auditor's, relative to the length of
    the link. All three are displacements from θ: [elements]; `start` and `end` are decoded from the
    prover's checkpoints, and `repeated` is where the auditor came from `start`.

    Return infinity if a number is not finite, or if the auditor did not move.
    """
    assert start.shape == end.shape == repeated.shape
    apart, moved = [], []
    for first in range(0, start.size, _RUN):
        run = slice(first, first + _RUN)
        ours = repeated[run].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            apart.append(float(np.sum((end[run] - ours) ** 2)))
            moved.append(float(np.sum((start[run] - ours) ** 2)))
    if not math.isfinite(sum(apart) + sum(moved)) or sum(moved) == 0:
        return math.inf
    return math.sqrt(math.fsum(apart) / math.fsum(moved))


def judge_link(distance: float, *, cold: bool) -> Verdict:
    """Judge a repeated link. `cold` says that it started with an empty optimizer state."""
    limit = COLD_DISTANCE_MAX if cold else DISTANCE_MAX
    passed = distance <= limit
    words = (
        f"the repeated inner steps end {distance:.3g} of their length away; the limit is {limit:g}"
    )
    return Verdict(passed, words)


def opened_share(faked_links: Sequence[bool], share: Fraction) -> Fraction:
    """Return the probability that an outer step opens a faked link of this chain."""
    return share * Fraction(sum(faked_links), len(faked_links))
