"""A state has one encoding, its digest covers all fields, and a decoded state is consistent."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import canonical
from p2ptrain.ledger.chain.leases import Leases
from p2ptrain.ledger.chain.state import (
    ENCODERS,
    STATE_BYTES_MAX,
    LedgerState,
    Phase,
    Stretch,
    encode_state,
    plain_state,
    runs_of,
)
from p2ptrain.ledger.chain.values import Commit, Participant, Roster, SnapshotRef, Terms
from p2ptrain.ledger.history.decode_state import READERS, decode_state
from p2ptrain.testing.ledgers import chain_of, digest, peers, small_rules

A, B, C, D = peers("a b c d")
RULES = small_rules("a b")
BOTH = (Participant(A, 200, 2), Participant(B, 150, 2))
OPEN = Roster(0, 0, (A, B), (), BOTH)
SNAPPED = Commit(0, 0, digest("u"), SnapshotRef(0, digest("s")), digest("any"))
REDUCING = chain_of(RULES, [OPEN])[1]
LEARNING = chain_of(RULES, [OPEN, SNAPPED, Roster(1, 0, (A, B), (C, D))])[1]

NUMBERS = st.integers(0, 2**53 - 1)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
BLOCKS = st.lists(st.integers(0, 40), max_size=9).map(tuple)


TERMS = st.builds(
    Terms, st.integers(1, 9), st.integers(1, 9), NAMES.map(digest), st.sampled_from([None, 1, 4])
)


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    first, second, third = (draw(NUMBERS) for _ in range(3))
    voters = tuple(draw(st.lists(NAMES.map(PeerId), max_size=2)))
    return Stretch(digest(draw(NAMES)), first, second, third, voters)


@st.composite
def states(draw: st.DrawFn) -> LedgerState:
    """Draw a consistent state. It need not be the result of any chain."""
    names = draw(st.lists(NAMES.map(PeerId), min_size=1, max_size=7, unique=True))
    voting = draw(st.integers(1, len(names)))
    voters, learners = tuple(names[:voting]), tuple(names[voting:])
    parts = [Participant(each, draw(st.integers(1, 9)), 1) for each in names[: draw(st.just(2))]]
    phase = draw(st.sampled_from(Phase))
    roster = Roster(draw(NUMBERS), draw(NUMBERS), voters, learners, tuple(parts))
    snapshot = SnapshotRef(draw(NUMBERS), digest(draw(NAMES)))
    return LedgerState(
        line=digest(draw(NAMES)),
        past=tuple(draw(st.lists(stretches(), max_size=2))),
        height=draw(NUMBERS),
        head=digest(draw(NAMES)),
        step=draw(NUMBERS),
        phase=phase,
        attempt=draw(NUMBERS),
        tried_before=draw(NUMBERS),
        roster=roster if phase is Phase.REDUCE else None,
        voters=voters,
        learners=learners,
        since={name: draw(NUMBERS) for name in names},
        proven=frozenset(name for name in learners if draw(st.booleans())),
        lease_book=Leases({name: draw(BLOCKS) for name in names}, draw(BLOCKS), draw(NUMBERS)),
        tokens_by_peer=draw(st.dictionaries(NAMES.map(PeerId), NUMBERS, max_size=5)),
        tokens=draw(NUMBERS),
        snapshot=draw(st.sampled_from([None, snapshot])),
        terms=tuple(draw(st.lists(TERMS, max_size=2))),
    )


@settings(max_examples=150, deadline=None)
@given(states(), states())
def test_states_survive_encoding_and_equal_digests_mean_equality(
    one: LedgerState, other: LedgerState
) -> None:
    assert decode_state(encode_state(one)) == one
    assert decode_state(encode_state(one)).digest == one.digest
    assert (one.digest == other.digest) == (one == other)


@settings(max_examples=150, deadline=None)
@given(states(), st.sampled_from(sorted(ENCODERS)), states())
def test_every_field_changes_the_digest(one: LedgerState, name: str, other: LedgerState) -> None:
    mixed = replace(one, **{name: getattr(other, name)})
    assert (mixed.digest == one.digest) == (getattr(other, name) == getattr(one, name))


def test_every_field_of_a_state_is_encoded_and_decoded() -> None:
    """If a field were missing from the tables, two different states could have the same digest."""
    names = {each.name for each in fields(LedgerState) if each.compare}
    assert set(ENCODERS) == set(READERS) == names


@dataclass(frozen=True, slots=True)
class Longer(LedgerState):
    """A state with an additional field."""

    colour: str = "green"


def test_state_with_an_unknown_field_has_no_digest() -> None:
    longer = Longer(**{name: getattr(REDUCING, name) for name in ENCODERS})
    with pytest.raises(AssertionError, match="every field"):
        longer.digest  # noqa: B018 (asking is the point)


def test_digest_is_computed_once_and_not_kept_by_a_changed_copy() -> None:
    state = replace(REDUCING)
    assert state.digest is state.digest
    changed = replace(state, tokens=state.tokens + 1)
    assert changed.digest != state.digest


def test_lease_is_encoded_as_a_few_ranges_of_blocks() -> None:
    assert runs_of(()) == []
    assert runs_of((4, 5, 6)) == [[4, 3]]
    assert runs_of((7, 8, 3, 4, 4)) == [[7, 2], [3, 2], [4, 1]]


def test_state_larger_than_peers_accept_is_not_encoded() -> None:
    size = len(encode_state(REDUCING))
    assert encode_state(REDUCING, bytes_max=size) == encode_state(REDUCING)
    with pytest.raises(LocalProtocolError, match="larger than peers accept"):
        encode_state(REDUCING, bytes_max=size - 1)


def bent(state: LedgerState, **changes: Any) -> bytes:
    return canonical({**plain_state(state), **changes})


LEASED = plain_state(LEARNING)["lease_book"]
assert isinstance(LEASED, dict)
NO_STATE: dict[str, bytes] = {
    "not JSON": b"{",
    "a list": b"[]",
    "a field too few": canonical({k: v for k, v in plain_state(LEARNING).items() if k != "head"}),
    "a field too many": bent(LEARNING, colour="x"),
    "a line that is not a digest": bent(LEARNING, line="x"),
    "a stretch with a missing part": bent(LEARNING, past=[[digest("l"), 1, 0, 0]]),
    "a height below zero": bent(LEARNING, height=-1),
    "a head that is not a digest": bent(LEARNING, head="x"),
    "an unknown phase": bent(LEARNING, phase="dreaming"),
    "a phase that is a list": bent(LEARNING, phase=[]),
    "a roster that is a skip": bent(LEARNING, roster={"kind": "skip", "step": 0}),
    "a roster outside a reduce": bent(LEARNING, roster=OPEN.plain()),
    "a reduce without a roster": bent(LEARNING, phase="reduce"),
    "a roster with different voters": bent(
        REDUCING, roster=Roster(0, 0, (A,), (), BOTH[:1]).plain()
    ),
    "no voters": bent(REDUCING, voters=[], since={}, lease_book={**LEASED, "held": {}}),
    "a member twice": bent(LEARNING, learners=["a", "c", "d"]),
    "too many members": bent(
        LEARNING, voters=[f"v{n}" for n in range(1000)], learners=[f"l{n}" for n in range(1000)]
    ),
    "a member without an admission step": bent(LEARNING, since={"a": 0}),
    "a member without a lease": bent(LEARNING, lease_book={**LEASED, "held": {}}),
    "a voter among the proven learners": bent(LEARNING, proven=["a"]),
    "names out of order": bent(replace(LEARNING, proven=frozenset((C, D))), proven=["d", "c"]),
    "tokens as a list": bent(LEARNING, tokens_by_peer=[]),
    "a range with three numbers": bent(LEARNING, lease_book={**LEASED, "returned": [[1, 2, 3]]}),
    "a range with one number": bent(LEARNING, lease_book={**LEASED, "returned": [[1]]}),
    "adjacent ranges": bent(LEARNING, lease_book={**LEASED, "returned": [[1, 2], [3, 1]]}),
    "an empty range": bent(LEARNING, lease_book={**LEASED, "returned": [[1, 0]]}),
    "2^52 blocks": bent(LEARNING, lease_book={**LEASED, "returned": [[0, 2**52]]}),
    "a snapshot with three parts": bent(LEARNING, snapshot=[1, digest("s"), 2]),
    "with spaces": json.dumps(plain_state(LEARNING), sort_keys=True).encode(),
    "too long": b" " * (STATE_BYTES_MAX + 1),
}


@pytest.mark.parametrize("name", NO_STATE)
def test_malformed_state_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_state(NO_STATE[name])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2000), st.binary(max_size=3))
def test_damaged_bytes_are_refused_or_give_another_state(at: int, damage: bytes) -> None:
    data = encode_state(LEARNING)
    bad = data[: at % len(data)] + damage + data[at % len(data) + len(damage) :]
    try:
        state = decode_state(bad)
    except RemoteProtocolError:
        return
    assert encode_state(state) == bad
