"""No order of messages, timeouts and crashes within a bound breaks a rule, and planted defects are
found. A world is a state of all members, their disks and their messages.
"""

from __future__ import annotations

import pytest

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.values import Entry, Skip, Vote
from p2ptrain.ledger.messages.messages import Accept, Accepted, Prepare, Promise, Propose
from p2ptrain.testing.ledgers import LedgerGroup, digest, small_rules
from tests.exploration.harness.__main__ import main
from tests.exploration.harness.copying import copy_of, key_of
from tests.exploration.harness.search import Bound, explore
from tests.exploration.harness.statements import contrary, statement_of
from tests.simulation.defects.mutants import MUTANTS


@pytest.mark.parametrize(
    ("timeouts", "crashes", "worlds_min"), [(0, 0, 50), (1, 1, 10_000), (2, 0, 300_000)]
)
def test_no_reachable_world_breaks_a_rule(timeouts: int, crashes: int, worlds_min: int) -> None:
    """Three bounds are tested: (1) no timeout and no crash; (2) one timeout and one crash; (3) two
    timeouts and no crash.
    """
    found = explore(Bound(timeouts, crashes))
    assert (found.fault, found.story) == ("", ())
    assert found.finished
    assert found.worlds >= worlds_min
    assert found.decided > 0


def test_no_honest_member_is_ever_accused() -> None:
    found = explore(Bound(timeouts=1, crashes=0), witnesses=True)
    assert (found.fault, found.finished) == ("", True)
    assert found.worlds >= 50_000


@pytest.mark.parametrize(
    ("mutant", "steps"),
    [("promise-not-persisted", 5), ("vote-not-persisted", 5), ("lower-round-accepted", 4)],
)
def test_planted_defect_is_found_with_a_short_trace(mutant: str, steps: int) -> None:
    (planted,) = (each for each in MUTANTS if each.name == mutant)
    with planted.planted():
        found = explore(Bound(timeouts=1, crashes=1), worlds_max=5_000)
    assert found.fault.startswith("a ")
    assert len(found.story) <= steps
    assert found.story[0] == "start"


def test_command_prints_the_number_of_visited_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bound", "0,1"]) == 0
    assert "within 0 timeouts, 1 crashes" in capsys.readouterr().out


def test_command_prints_the_steps_to_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bound", "1,1", "--mutant", "lower-round-accepted"]) == 1
    assert "c times out\nc -> a: Prepare\nb -> a: Propose\nfault: a" in capsys.readouterr().out


# ── the parts that the exploration relies on─────────────────────────────────────────────────────


def test_copy_is_equal_and_shares_no_mutable_object() -> None:
    some = LedgerGroup(small_rules())
    some.ready("a b c")
    twin = copy_of(some["a"])
    assert key_of(twin, 0.0) == key_of(some["a"], 0.0)
    before = key_of(twin, 0.0)
    some.deliver()
    assert some["a"].state.height == 1
    assert key_of(twin, 0.0) == before != key_of(some["a"], 0.0)


def _vote(round: int, entry: Entry) -> Accept:
    run = small_rules().run
    return Accept(Vote(run, entry.height, round, entry.digest, PeerId("a"), b""))


ONE, OTHER = Entry(1, digest("x"), Skip(0)), Entry(1, digest("y"), Skip(0))


@pytest.mark.parametrize(
    ("first", "second", "is_contrary"),
    [
        (_vote(1, ONE), _vote(1, OTHER), True),
        (_vote(1, ONE), Propose(1, OTHER, b""), True),
        (_vote(0, ONE), _vote(1, OTHER), False),
        (_vote(1, ONE), Promise(1, 2, None, b""), True),
        (_vote(1, ONE), Promise(1, 2, Accepted(0, ONE, b""), b""), True),
        (_vote(1, ONE), Promise(1, 2, Accepted(1, ONE, b""), b""), False),
        (_vote(1, OTHER), Promise(1, 2, Accepted(1, ONE, b""), b""), True),
        (_vote(2, ONE), Promise(1, 2, None, b""), False),
        (Promise(1, 2, None, b""), Promise(1, 2, Accepted(1, ONE, b""), b""), True),
        (Promise(1, 2, None, b""), Promise(2, 2, None, b""), False),
        (Promise(2, 2, None, b""), _vote(1, ONE), False),
        (Prepare(1, 1), _vote(1, ONE), False),
    ],
)
def test_contradictions_between_statements_are_found(
    first: Accept, second: Accept, is_contrary: bool
) -> None:
    assert contrary(statement_of(first), statement_of(second)) is is_contrary
    assert contrary(statement_of(second), statement_of(first)) is is_contrary
