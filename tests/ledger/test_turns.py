"""A proposer that does not use its turn delays the others by one full round the first time, and
later only by short rounds (SPEC.md, "Liveness").
"""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.turns import TARDY_HEIGHTS, TARDY_PART, Tardiness, Turns
from p2ptrain.testing.ledgers import LedgerGroup, Unicast, digest, peers, small_rules

A, B, C = ALL = peers("a b c")
LINE, PARENT = digest("a line"), digest("its parent")
ROUND_S = small_rules().round_timeout_s


def turns_of(height: int, tardy: frozenset[PeerId] = frozenset(), me: PeerId = A) -> Turns:
    rules = small_rules()
    return Turns(
        Electorate(rules, LINE, height, PARENT, ALL, me, lambda _: b"", lambda *_: True), tardy
    )


def lengths(turns: Turns, count: int) -> list[float]:
    """Return the durations in seconds of `count` rounds in which nobody proposes."""
    now, seconds = 100.0, []
    for round in range(count):
        turns.begin(round, now)
        assert turns.ends_at is not None
        assert not turns.expired(turns.ends_at - 0.01)
        seconds.append(turns.ends_at - now)
        now = turns.ends_at
        assert turns.expired(now)
        turns.lapse(round)
    return seconds


def test_rounds_get_longer_if_no_proposer_is_tardy() -> None:
    assert lengths(turns_of(3), 4) == [ROUND_S, 2 * ROUND_S, 3 * ROUND_S, 4 * ROUND_S]


def test_rounds_of_a_tardy_proposer_are_short_and_do_not_lengthen_others() -> None:
    """With three voters, the proposers of height 4 are `b`, `c` and `a`, in this order."""
    short = TARDY_PART * ROUND_S
    seconds = lengths(turns_of(4, frozenset({B})), 7)
    assert seconds == [short, *(ROUND_S * it for it in (1, 2)), short, *(3, 4, 5)]


def test_rounds_have_full_length_if_many_voters_are_tardy() -> None:
    assert lengths(turns_of(3, frozenset({B, C})), 3) == [ROUND_S, 2 * ROUND_S, 3 * ROUND_S]


def test_nobody_counts_as_tardy_if_many_turns_lapse() -> None:
    memory, turns = Tardiness(), turns_of(4)
    lengths(turns, 2)
    memory.decided(2, turns)
    assert memory.at(5) == frozenset()


def test_node_does_not_count_itself_as_tardy() -> None:
    turns = turns_of(3)
    lengths(turns, 3)
    assert turns.lapsed == {B, C}


def test_lapsed_turn_is_remembered_until_its_proposer_decides_a_height() -> None:
    memory, turns = Tardiness(), turns_of(4, me=A)
    lengths(turns, 1)
    memory.decided(1, turns)
    assert [memory.at(5), memory.at(4 + TARDY_HEIGHTS)] == [frozenset({B}), frozenset()]
    memory.decided(0, turns_of(5))
    assert memory.at(6) == {B}, "b must still be tardy, since c decided height 5"
    memory.decided(0, turns_of(7))
    assert memory.at(8) == frozenset(), "b must not be tardy, since it decided height 7"


def test_old_lapsed_turns_are_forgotten() -> None:
    memory, turns = Tardiness(), turns_of(4)
    lengths(turns, 1)
    memory.decided(1, turns)
    memory.decided(0, turns_of(4 + TARDY_HEIGHTS))
    assert memory.until == {}


def heights_took_s(group: LedgerGroup, silent: PeerId, steps: int) -> dict[int, float]:
    """Run outer steps in which the peer `silent` is up but sends nothing. Return the duration of
    each height in seconds.
    """

    def arrives(unicast: Unicast) -> bool:
        return unicast.sender != silent

    took_s: dict[int, float] = {}
    for step in range(steps):
        update = digest(f"update {step}")
        for report in ("ready", "made"):
            height, began = group["a"].state.height + 1, group.now
            if report == "ready":
                group.ready("a b c")
            else:
                group.hold_update(update, "a b c")
                group.made(update, "a b c")
            while group["a"].state.height < height:
                group.wait(TARDY_PART * ROUND_S / 4, arrives)
            took_s[height] = group.now - began
            group.wait(ROUND_S, arrives)
    return took_s


def test_silent_proposer_delays_the_others_by_only_one_round() -> None:
    took_s = heights_took_s(LedgerGroup(small_rules(outer_steps=9)), B, steps=4)
    slow = {height for height, seconds in took_s.items() if seconds > 2 * TARDY_PART * ROUND_S}
    assert slow == {1}, "of heights 1, 4 and 7, which b leads, only the first may be slow"
