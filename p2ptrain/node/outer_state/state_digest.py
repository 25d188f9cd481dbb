"""Compute the digest of θ and m for a user, at most once in each outer step."""

from __future__ import annotations

import trio

from p2ptrain.node.state.outer import Outer

DIGEST_NUMEL_MAX = 1 << 28
"""Maximum number of parameters for which the digest is computed: hashing θ and m of a larger model
takes over a second. The digests of such a model's states can be read from its snapshots."""


def known_digest(outer: Outer) -> str:
    """Return the digest of θ and m if it has been computed for this outer step; otherwise "". The
    page asks often, and hashing a large model takes a second."""
    known = outer.digest
    return known[1] if known is not None and known[0] == outer.step and not outer.moving else ""


async def state_digest(outer: Outer) -> str:
    """Return the blake3 digest of θ and m. It is empty while no snapshot is loaded, while θ and m
    change, and for a large model."""
    if outer.step is None or outer.moving or outer.vectors.numel > DIGEST_NUMEL_MAX:
        return ""
    if outer.digest is None or outer.digest[0] != outer.step:
        step = outer.step
        digest = await trio.to_thread.run_sync(outer.vectors.digest)
        if outer.step != step or outer.moving:
            return ""
        outer.digest = (step, digest)
    return outer.digest[1]
