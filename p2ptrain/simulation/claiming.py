"""The claims of a simulated process: which contribution it commits itself to, and from when on."""

from __future__ import annotations

from dataclasses import replace

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, LineId
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.proofs.claims import Claim, signed_statement
from p2ptrain.simulation.disk import SimDisk, digest, signer

Work = tuple[LineId, int, tuple[int, ...]]
"""Line, outer step, and the trained blocks: work that differs needs a new claim."""


class SimClaims:
    """`began_at` is the outer step at whose θ the work began. The serial number is on the disk, so
    that a restarted process does not use one again (SPEC.md, C1). The work is not: a restarted
    process trains anew and makes a new claim."""

    def __init__(self, me: PeerId, disk: SimDisk) -> None:
        self.began_at = 0
        self._me = me
        self._disk = disk
        self._made: tuple[Work, Ready] | None = None

    def claimed(self, ready: Ready, state: LedgerState, trained: tuple[int, ...]) -> Ready:
        """Return `ready` with the claim about this work. The same work has the same claim."""
        work = (state.line, ready.step, trained)
        if self._made is None or self._made[0] != work:
            self._made = (work, self._new(ready, state))
        return self._made[1]

    def _new(self, ready: Ready, state: LedgerState) -> Ready:
        me, disk, step = self._me, self._disk, ready.step
        disk.serial += 1
        base = _last_commit(disk, state) if self.began_at == step else None
        numbers = digest(f"the work {disk.serial} of {me}")
        parts = (base, ready.tokens, ready.blocks, numbers)
        claim = Claim(me, state.line, step, disk.serial, *parts)
        disk.claims[claim.digest] = claim
        return replace(ready, claim=signed_statement(claim, signer(me)))


def _last_commit(disk: SimDisk, state: LedgerState) -> Digest:
    entries = (each.entry for each in reversed(disk.chain))
    commits = (entry.digest for entry in entries if isinstance(entry.value, Commit))
    return next(commits, Digest(state.line))
