"""Was every committed block trained exactly once, by the member that held its lease?

The ledger says whose work on which blocks went into each outer step; journals say, in the trainers'
own words, which blocks were in the weights that a node offered (its `ready` records: all that was
trained on top of θ, not more and not less). This compares the two, after the fact, for whoever has
both. Kills, joins and branches leave `ready` records of work that was lost: it counts only what was
offered upon an entry of this chain, and what the chain says was taken.

It knows nothing of data or updates: that a block's number names the right bytes, and that an update
is made of just that work, others check.
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
"""A run that went wrong from the start has one for every block; nobody reads more than these."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One committed block that was not trained exactly once by whoever was credited with it."""

    step: int
    block: int
    peer: PeerId
    reason: str

    @property
    def words(self) -> str:
        return f"outer step {self.step}, block {self.block}, {label(self.peer)}: {self.reason}"


@dataclass(slots=True)
class Trained:
    """What was found. `unseen` blocks were committed for peers whose journals are not here, or do
    not reach back so far.
    """

    checked: int = 0
    unseen: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults


@dataclass(slots=True)
class _Offers:
    """What one peer has offered, by its journals: work upon entries that are in the chain or not.

    Journals begin somewhere: their older halves are put aside, and in the end removed.
    """

    made: dict[int, list[tuple[str, Blocks]]] = field(default_factory=dict)

    def reach_back_to(self, step: int) -> bool:
        return bool(self.made) and min(self.made) <= step

    def upon(self, step: int, heads: set[str]) -> list[Blocks]:
        """The work that was offered in this outer step, upon one of these entries."""
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
    """No block has a negative one: what is none matches nothing."""
    return block if type(block) is int else -1


def check_trained(
    begins: LedgerState, links: Iterable[tuple[LedgerState, Entry]], records: Iterable[Record]
) -> Trained:
    """Compare a chain, (state before, entry) one after the other from `begins` on, with the records
    of all journals that there are, each journal's in their order.

    The chain must have been verified. Journals may come from anybody: a wrong one makes faults, or
    hides those of the peers that it speaks of.
    """
    found = Trained()
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
) -> list[Fault]:
    again = [block for block in credited if block in committed]
    faults = [
        Fault(step, block, part.peer, f"was committed in outer step {committed[block]} already")
        for block in again
    ]
    committed.update((block, step) for block in credited)
    return faults


def _compared(
    step: int, part: Participant, credited: Blocks, works: Sequence[Blocks]
) -> list[Fault]:
    if credited in works:
        return []
    # Of several works the newest is the one that would have been averaged.
    last = works[-1] if works else ()
    return [
        Fault(step, block, part.peer, reason)
        for block in dict.fromkeys((*credited, *last))
        if (reason := _wrong(block, credited, last))
    ]


def _wrong(block: int, credited: Blocks, work: Blocks) -> str:
    """What is wrong with `block` of a work that is not what was credited; nothing if it is not."""
    times = work.count(block)
    if block not in credited:
        return "is in the work, and is not credited"
    if times != 1:
        return "is not in the work" if times == 0 else f"was trained {times} times"
    return ""
