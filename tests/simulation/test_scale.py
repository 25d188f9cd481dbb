"""The cost of an outer step in messages, bytes and delays. The cost is deterministic, so tests can
assert it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from scripts.research.ledger_scale import measure, row


@pytest.mark.parametrize("members", [3, 10, 40])
def test_commit_takes_six_message_delays_and_is_known_to_all_after_seven(members: int) -> None:
    cost = measure(members)
    assert (cost.commit_delays, cost.everywhere_delays) == (6.0, 7.0)


def test_messages_of_a_peer_grow_no_faster_than_members() -> None:
    few, many = measure(10), measure(40)
    assert many.busiest.received <= 4.2 * few.busiest.received
    assert many.busiest.sent <= 4.2 * few.busiest.sent


def test_bytes_of_a_peer_grow_no_faster_than_members() -> None:
    """These sizes are below and above the number of voters at which gossip replaces unicast."""
    costs = [measure(members).busiest for members in (10, 40, 160)]
    totals = [cost.bytes_received + cost.bytes_sent for cost in costs]
    for fewer, more in pairwise(totals):
        assert more <= 1.1 * 4 * fewer


def test_measurement_is_printed_as_a_table_row() -> None:
    cells = row(measure(4)).strip("| ").split(" | ")
    assert len(cells) == 9
    assert cells[0] == "4"
    assert cells[-2:] == ["6 delays", "7 delays"]
