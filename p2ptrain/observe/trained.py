"""Check that every committed block was trained on exactly once, by the member that held its lease.

The ledger states which members contributed to each outer step, and which blocks they trained on.
When a node offers its trained weights for an average, its journal gets a `ready` record that lists
the blocks on which its trainer trained them. This module compares the ledger with these records
afterwards. After kills, joins and branches, there are `ready` records of work that was lost. So a
record counts only if, at that time, the node's ledger ended in an entry of this chain.

This module knows nothing about data or updates. Other modules check that a block's number stands
for the right bytes, and that an update consists of exactly the accepted work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Entry, Participant
from p2ptrain.names import label

Blocks = tuple[int, ...]
Record = Mapping[str, object]

FAULTS_KEPT_MAX = 1000
"""Maximum number of faults kept. A run that went wrong at the start has a fault for every block."""


@dataclass(frozen=True, slots=True)
class TrainingFault:
    """One committed block that the credited member did not train on exactly once."""

    step: int
    block: int
    peer: PeerId
    reason: str

    @property
    def words(self) -> str:
        return f"outer step {self.step}, block {self.block}, {label(self.peer)}: {self.reason}"


@dataclass(slots=True)
class TrainingAudit:
    """The result of the check. `unseen` is the number of committed blocks for which the peer's
    journal is missing or does not reach back far enough.
    """

    checked: int = 0
    unseen: int = 0
    faults: list[TrainingFault] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class _Offers:
    """The work that one peer has offered, according to its journals: for each outer step, the head
    (digest of the newest entry) of its chain at that time, and the blocks.

    Journals do not always reach back to the start of the run, since their older parts are removed.
    """

    made: dict[int, list[tuple[str, Blocks]]] = field(default_factory=dict)

    def reach_back_to(self, step: int) -> bool:
        return bool(self.made) and min(self.made) <= step

    def upon(self, step: int, heads: set[str]) -> list[Blocks]:
        """Return the work that was offered in this outer step when one of `heads` was the head."""
        return [blocks for head, blocks in self.made.get(step, []) if head in heads]


def _offers_in(records: Iterable[Record]) -> dict[str, _Offers]:
    found: dict[str, _Offers] = {}
    for record in records:
        if record.get("event") != "ready":
            continue
        match [record.get(name) for name in ("peer", "step", "head", "trained")]:
            case [str(peer), int(step), str(head), [*blocks]]:
                made = found.setdefault(peer, _Offers()).made
                made.setdefault(step, []).append((head, tuple(map(_number, blocks))))
    return found


def _number(block: object) -> int:
    """Return the number of a block; -1, the number of no block, if `block` is not a number."""
    return block if type(block) is int else -1


def check_trained(
    begins: LedgerState, links: Iterable[tuple[LedgerState, Entry]], records: Iterable[Record]
) -> TrainingAudit:
    """Compare a chain with the records of all available journals.

    `links` contains (state before, entry) for all entries in order, starting at `begins`. The
    records of each journal must be in order. The chain must have been verified. Journals may come
    from anybody: a false journal can cause faults, or hide the faults of the peers that it names.
    """
    found = TrainingAudit()
    offers = _offers_in(records)
    committed: dict[int, int] = {}
    heads: set[str] = {begins.head}
    step = begins.step
    for before, entry in links:
        if before.step != step:
            heads, step = {before.head}, before.step
        if isinstance(entry.value, Commit):
            assert before.roster is not None
            for part in before.roster.participants:
                credited = before.leases[part.peer][: part.blocks]
                found.faults += _taken_twice(step, part, credited, committed)
                theirs = offers.get(part.peer, _Offers())
                if theirs.reach_back_to(step):
                    found.checked += len(credited)
                    found.faults += _compared(step, part, credited, theirs.upon(step, heads))
                else:
                    found.unseen += len(credited)
        heads.add(entry.digest)
    del found.faults[FAULTS_KEPT_MAX:]
    return found


def _taken_twice(
    step: int, part: Participant, credited: Blocks, committed: dict[int, int]
) -> list[TrainingFault]:
    again = [block for block in credited if block in committed]
    reason = "was already committed in outer step {}"
    faults = [
        TrainingFault(step, block, part.peer, reason.format(committed[block])) for block in again
    ]
    committed.update((block, step) for block in credited)
    return faults


def _compared(
    step: int, part: Participant, credited: Blocks, works: Sequence[Blocks]
) -> list[TrainingFault]:
    """Return the faults of a peer that offered `works` in this step and is credited with one."""
    if credited in works:
        return []
    # If there are several works, the last one would have been averaged.
    last = works[-1] if works else ()
    return [
        TrainingFault(step, block, part.peer, reason)
        for block in dict.fromkeys((*credited, *last))
        if (reason := _wrong(block, credited, last))
    ]


def _wrong(block: int, credited: Blocks, work: Blocks) -> str:
    """Return what is wrong with `block` in `work`, which differs from the credited work; or ""."""
    times = work.count(block)
    if block not in credited:
        return "is in the trained work, but is not credited"
    if times == 0:
        return "is credited, but was not trained on"
    return "" if times == 1 else f"was trained on {times} times"
