"""The audit of training accepts a correct history, and names the wrong blocks of an incorrect
one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.apply import apply, genesis
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Commit, Entry, Participant, Roster, Value
from p2ptrain.observe.trained import TrainingAudit, TrainingFault, check_trained
from p2ptrain.testing.ledgers import digest, peers, small_rules

A, B, C = peers("a b c")
RULES = small_rules()
Records = list[dict[str, Any]]


class Story:
    """A chain of ledger entries, and the records that the participants' journals have of it."""

    def __init__(self) -> None:
        self.state = genesis(RULES)
        self.links: list[tuple[LedgerState, Entry]] = []
        self.records: Records = []

    def decide(self, value: Value) -> None:
        entry = Entry(self.state.height + 1, self.state.head, value)
        self.links.append((self.state, entry))
        self.state = apply(RULES, self.state, entry)

    def ready(self, peer: PeerId) -> None:
        step, head, trained = self.state.step, self.state.head, list(self.state.leases[peer])
        self.records.append(
            {"event": "ready", "peer": peer, "step": step, "head": head, "trained": trained}
        )

    def step(self, *participants: PeerId, failed: tuple[PeerId, ...] = ()) -> None:
        """Append one outer step. Before it, a reduce among the peers in `failed` fails."""
        for peer in participants:
            self.ready(peer)
        for group in filter(None, (failed, participants)):
            state = self.state
            leases = [(peer, len(state.leases[peer])) for peer in group]
            parts = tuple(Participant(peer, 100 * blocks, blocks) for peer, blocks in leases)
            self.decide(Roster(state.step, state.attempt, state.voters, (), parts))
        update = digest(f"update {state.step}")
        self.decide(Commit(state.step, state.attempt, update))

    def checked(self) -> TrainingAudit:
        return check_trained(genesis(RULES), self.links, self.records)


@pytest.fixture
def story() -> Story:
    """Return a correct history of three outer steps. Peer C is left out of the second step, and
    contributes its work in the third."""
    told = Story()
    told.step(A, B, C)
    told.ready(C)
    told.step(A, B, failed=(A, B, C))
    told.step(A, B, C)
    return told


def test_correct_history_passes_although_a_member_was_left_out_once(story: Story) -> None:
    assert story.checked() == TrainingAudit(checked=16, unseen=0)


def test_work_lost_with_a_process_or_a_branch_does_not_count(
    story: Story,
) -> None:
    killed = {**story.records[0], "trained": [0]}
    elsewhere = {**story.records[0], "head": digest("a branch"), "trained": [7, 8]}
    other = {"event": "inner-step", "step": 0, "peer": A}
    story.records = [other, killed, *story.records, elsewhere]
    assert story.checked() == TrainingAudit(checked=16, unseen=0)


def drop(records: Records, peer: PeerId, step: int) -> None:
    records[:] = [r for r in records if (r["peer"], r["step"]) != (peer, step)]


def trained(records: Records, peer: PeerId, step: int, blocks: list[Any]) -> None:
    (record,) = (r for r in records if (r["peer"], r["step"]) == (peer, step))
    record["trained"] = blocks


LEASE = [6, 7]
"""The blocks that peer A has to train on in outer step 1."""


@pytest.mark.parametrize(
    ("spoil", "faults"),
    [
        (
            lambda r: drop(r, A, 1),
            {6: "is credited, but was not trained on", 7: "is credited, but was not trained on"},
        ),
        (lambda r: trained(r, A, 1, [6]), {7: "is credited, but was not trained on"}),
        (lambda r: trained(r, A, 1, [6, 7, 6]), {6: "was trained on 2 times"}),
        (
            lambda r: trained(r, A, 1, [0, 1, 6, 7]),
            dict.fromkeys((0, 1), "is in the trained work, b"),
        ),
        (
            lambda r: trained(r, A, 1, [6, "7"]),
            {7: "is credited, but was not trained on", -1: "is in the trained wo"},
        ),
        (lambda r: r[3].update(head=digest("a branch")), {}),
    ],
)
def test_each_block_that_was_not_trained_on_exactly_once_is_reported(
    story: Story, spoil: Callable[[Records], None], faults: dict[int, str]
) -> None:
    assert story.records[4]["trained"] == LEASE
    spoil(story.records)
    found = story.checked()
    assert [(fault.step, fault.peer) for fault in found.faults] == [(1, A)] * len(faults)
    assert {fault.block for fault in found.faults} == set(faults)
    for fault in found.faults:
        assert fault.reason.startswith(faults[fault.block])
        assert f"block {fault.block}" in fault.words


def test_block_that_the_chain_commits_twice_is_reported(story: Story) -> None:
    # If the ledger did not remove committed blocks from leases, it could produce this chain.
    before, entry = story.links[1]
    again = [(before, entry), *story.links]
    assert (
        TrainingFault(0, 0, A, "was already committed in outer step 0")
        in check_trained(genesis(RULES), again, story.records).faults
    )


def test_blocks_that_no_journal_covers_are_counted_separately(story: Story) -> None:
    story.records = [record for record in story.records if record["peer"] != C]
    drop(story.records, B, 0)
    assert story.checked() == TrainingAudit(checked=16 - 4 - 2, unseen=4 + 2)
