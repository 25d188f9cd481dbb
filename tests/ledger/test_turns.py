"""A proposer that lets its turn pass costs one round, and little afterwards (SPEC.md, In time)."""

from __future__ import annotations

from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.effects import Note, Persist, Send
from p2ptrain.ledger.messages.events import Received
from p2ptrain.ledger.messages.messages import Prepare
from p2ptrain.ledger.paxos.electorate import Electorate
from p2ptrain.ledger.paxos.turns import TARDY_HEIGHTS, TARDY_PART, Tardiness, Turns
from p2ptrain.testing.ledgers import Group, Letter, digest, peers, small_rules

A, B, C = ALL = peers("a b c")
LINE, PARENT = digest("a line"), digest("its parent")
ROUND_S = small_rules().round_timeout_s


def turns_of(height: int, tardy: frozenset[PeerId] = frozenset(), me: PeerId = A) -> Turns:
    rules = small_rules()
    return Turns(
        Electorate(rules, LINE, height, PARENT, ALL, me, lambda _: b"", lambda *_: True), tardy
    )


def lengths(turns: Turns, count: int) -> list[float]:
    """How long each of `count` rounds lasts, in seconds, if nobody proposes."""
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


def test_rounds_get_longer_while_nobody_is_known_to_be_tardy() -> None:
    assert lengths(turns_of(3), 4) == [ROUND_S, 2 * ROUND_S, 3 * ROUND_S, 4 * ROUND_S]


def test_a_tardy_proposer_has_a_short_turn_and_lengthens_no_other() -> None:
    """Height 4 of three voters: b, c, a propose in this order."""
    seconds = lengths(turns_of(4, frozenset({B})), 4)
    assert seconds == [TARDY_PART * ROUND_S, ROUND_S, 2 * ROUND_S, 3 * ROUND_S]


def test_if_every_voter_is_tardy_the_second_turns_have_full_length() -> None:
    seconds = lengths(turns_of(3, frozenset(ALL)), 6)
    short = TARDY_PART * ROUND_S
    assert seconds == [short, short, short, ROUND_S, 2 * ROUND_S, 3 * ROUND_S]


def test_a_node_does_not_count_itself_as_tardy() -> None:
    turns = turns_of(3)
    lengths(turns, 3)
    assert turns.lapsed == {B, C}


def test_a_lapsed_turn_is_remembered_until_the_proposer_decides_a_height() -> None:
    memory, turns = Tardiness(), turns_of(4, me=A)
    lengths(turns, 1)
    memory.decided(1, turns)
    assert [memory.at(5), memory.at(4 + TARDY_HEIGHTS)] == [frozenset({B}), frozenset()]
    memory.decided(0, turns_of(5))
    assert memory.at(6) == {B}, "c decided that height"
    memory.decided(0, turns_of(7))
    assert memory.at(8) == frozenset(), "b decided that height"


def test_old_lapses_are_forgotten() -> None:
    memory, turns = Tardiness(), turns_of(4)
    lengths(turns, 1)
    memory.decided(1, turns)
    memory.decided(0, turns_of(4 + TARDY_HEIGHTS))
    assert memory.until == {}


def heights_took_s(group: Group, silent: PeerId, steps: int) -> dict[int, float]:
    """Let outer steps pass in which `silent` sends nothing but is up. Return how many seconds each
    height took.
    """

    def arrives(letter: Letter) -> bool:
        return letter.sender != silent

    took_s: dict[int, float] = {}
    for step in range(steps):
        update = digest(f"update {step}")
        for report in ("ready", "made"):
            height, began = group["a"].state.height + 1, group.now
            if report == "ready":
                group.ready("a b c")
            else:
                group.hold(update, "a b c")
                group.made(update, "a b c")
            while group["a"].state.height < height:
                group.wait(TARDY_PART * ROUND_S / 4, arrives)
            took_s[height] = group.now - began
            group.wait(ROUND_S, arrives)
    return took_s


def test_a_silent_proposer_costs_the_others_one_round() -> None:
    took_s = heights_took_s(Group(small_rules(outer_steps=9)), B, steps=4)
    slow = {height for height, seconds in took_s.items() if seconds > 2 * TARDY_PART * ROUND_S}
    assert slow == {1}, "it was to propose heights 1, 4 and 7"


def test_a_tardy_proposer_ends_no_round_early() -> None:
    group = Group(small_rules(outer_steps=9))
    heights_took_s(group, B, steps=1)
    assert group["a"].state.height == 2
    early = [
        [type(it) for it in group.tell("a", Received(sender, Prepare(3, round)))]
        for sender, round in ((B, 4), (C, 5))
    ]
    assert early == [[Note], [Persist, Send]]
