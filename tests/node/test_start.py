"""A node starts from where the fewest bytes bring it to the head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.ids import Digest
from p2ptrain.node.start import Start, choose_start

GENESIS = Start(0, Digest("0" * 64))
SNAPSHOT = Start(40, Digest("1" * 64))
OWN = Start(20, Digest("2" * 64))
SIZES = {"snapshot_bytes": 800, "update_bytes": 100}


@pytest.mark.parametrize(
    ("target", "own", "others", "chosen"),
    [
        (0, None, [GENESIS], GENESIS),
        (45, None, [GENESIS, SNAPSHOT], SNAPSHOT),
        (45, OWN, [GENESIS, SNAPSHOT], SNAPSHOT),
        (45, Start(38, OWN.digest), [GENESIS, SNAPSHOT], Start(38, OWN.digest)),
        (30, OWN, [GENESIS, SNAPSHOT], OWN),
        (41, Start(32, OWN.digest), [SNAPSHOT], SNAPSHOT),  # 900 bytes either way: the newer
        (5, None, [GENESIS], GENESIS),
        (10, OWN, [GENESIS], GENESIS),  # ours is from beyond what this ledger knows
    ],
)
def test_examples(target, own, others, chosen):
    assert choose_start(target_step=target, own=own, others=others, **SIZES) == chosen


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_the_choice_is_reachable_and_nothing_is_cheaper(target, own_step, snapshot_step):
    own, snapshot = Start(own_step, OWN.digest), Start(snapshot_step, SNAPSHOT.digest)
    chosen = choose_start(target_step=target, own=own, others=[GENESIS, snapshot], **SIZES)
    assert chosen is not None
    assert chosen.step <= target
    bill = {
        start: (0 if start is own else 800) + 100 * (target - start.step)
        for start in (own, snapshot, GENESIS)
    }
    assert bill[chosen] == min(cost for start, cost in bill.items() if start.step <= target)


def test_a_pruned_ledger_cannot_start_from_before_where_it_begins():
    kept = dict(target_step=45, **SIZES)
    assert choose_start(own=OWN, others=[GENESIS, SNAPSHOT], first_step=21, **kept) == SNAPSHOT
    assert choose_start(own=OWN, others=[GENESIS, SNAPSHOT], first_step=20, **kept) == SNAPSHOT
    assert choose_start(own=OWN, others=[GENESIS], first_step=20, **kept) == OWN
    assert choose_start(own=OWN, others=[GENESIS], first_step=21, **kept) is None
