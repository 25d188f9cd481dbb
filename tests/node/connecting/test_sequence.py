"""The order of the steps follows from what is known about both ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from p2ptrain.node.connecting.sequence import (
    FAILED_LONG_S,
    FAILED_S,
    Begins,
    Ends,
    Sequence,
    Step,
    Turn,
    sequence,
)

DIAL, REVERSE, PUNCH, RELAY = Step.DIAL, Step.REVERSE_DIAL, Step.PUNCH, Step.RELAY
NEAR = Turn(DIAL, is_brief=True)
BOTH, CLIENT, SERVER, NEITHER = (
    Ends(client, server, may_punch=True)
    for client, server in ((True, True), (True, False), (False, True), (False, False))
)
ONE_CHANGES = replace(NEITHER, server_changes_ports=True)
BOTH_CHANGE = replace(NEITHER, client_changes_ports=True, server_changes_ports=True)
STRANGERS = replace(NEITHER, may_punch=False)


@pytest.mark.parametrize(
    ("known", "for_chunks", "for_an_edge", "why"),
    [
        (BOTH, [DIAL, REVERSE, PUNCH], [DIAL, REVERSE, PUNCH], "the server can be dialled"),
        (SERVER, [DIAL, PUNCH], [DIAL, PUNCH], "the server can be dialled"),
        (
            CLIENT,
            [REVERSE, DIAL, PUNCH, RELAY],
            [REVERSE, DIAL, PUNCH],
            "only the client can be dialled",
        ),
        (NEITHER, [PUNCH, DIAL, RELAY], [PUNCH, DIAL, RELAY], "neither can be dialled"),
        (
            replace(NEITHER, share_site=True),
            [DIAL, PUNCH, RELAY],
            [DIAL, PUNCH, RELAY],
            "neither can be dialled",
        ),
        (
            replace(NEITHER, punching_failed_s=0.0),
            [DIAL, RELAY, PUNCH],
            [DIAL, RELAY, PUNCH],
            "neither can be dialled, and punching failed lately",
        ),
        (
            BOTH_CHANGE,
            [RELAY, DIAL, PUNCH],
            [RELAY, DIAL, PUNCH],
            "neither can be dialled, and the ports of both change",
        ),
        (
            replace(BOTH_CHANGE, share_site=True),
            [DIAL, RELAY, PUNCH],
            [DIAL, RELAY, PUNCH],
            "neither can be dialled, and the ports of both change",
        ),
        (
            ONE_CHANGES,
            [PUNCH, DIAL, RELAY],
            [PUNCH, DIAL, RELAY],
            "neither can be dialled, and the ports of one change: punching needs a router that "
            "lets everybody in",
        ),
        (
            STRANGERS,
            [DIAL],
            [DIAL],
            "neither can be dialled, and they may not punch",
        ),
        (
            replace(STRANGERS, server_is_dialable=True),
            [DIAL],
            [DIAL],
            "the server can be dialled",
        ),
    ],
)
def test_order_follows_from_what_is_known(
    known: Ends, for_chunks: list[Step], for_an_edge: list[Step], why: str
) -> None:
    found = [sequence(each) for each in (known, replace(known, is_edge=True))]
    assert [list(each.steps) for each in found] == [for_chunks, for_an_edge]
    assert [each.reason for each in found] == [why, why]


def test_sequences_say_when_each_step_begins() -> None:
    late, last = Turn(RELAY, Begins.AFTER_CALLS), Turn(PUNCH, Begins.AFTER_FAILURE)
    assert sequence(CLIENT).turns == (Turn(REVERSE), NEAR, Turn(PUNCH), late)
    assert sequence(NEITHER).turns == (Turn(PUNCH), NEAR, late)
    assert sequence(BOTH_CHANGE).turns == (Turn(RELAY), NEAR, last)
    failed = sequence(replace(NEITHER, punching_failed_s=0.0))
    assert failed == Sequence(
        (NEAR, Turn(RELAY), Turn(PUNCH)), "neither can be dialled, and punching failed lately"
    )


@pytest.mark.parametrize(
    ("known", "ago_s", "first"),
    [
        (NEITHER, FAILED_S - 1, DIAL),
        (NEITHER, FAILED_S, PUNCH),
        (ONE_CHANGES, FAILED_S, DIAL),
        (ONE_CHANGES, FAILED_LONG_S, PUNCH),
        (ONE_CHANGES, inf, PUNCH),
    ],
)
def test_failure_of_punching_is_remembered_longer_if_ports_change(
    known: Ends, ago_s: float, first: Step
) -> None:
    assert sequence(replace(known, punching_failed_s=ago_s)).steps[0] is first


def every_ends() -> list[Ends]:
    found = [Ends(*flags) for flags in product((False, True), repeat=7)]
    return [replace(each, punching_failed_s=ago_s) for each in found for ago_s in (0.0, inf)]


def test_every_sequence_has_each_step_once_and_a_reason() -> None:
    for known in every_ends():
        found = sequence(known)
        assert DIAL in found.steps
        assert len(set(found.steps)) == len(found.steps)
        assert found.reason


def test_relay_never_excuses_a_neighbour_that_could_be_dialled() -> None:
    """A relay's fault blames nobody, so a neighbour that is down must not get a relay's excuse."""
    for known in every_ends():
        if known.is_edge and (known.client_is_dialable or known.server_is_dialable):
            assert RELAY not in sequence(known).steps


def test_peers_that_may_not_punch_only_dial() -> None:
    """A stranger can make nobody else send a packet."""
    for known in every_ends():
        if not known.may_punch and not known.is_edge:
            assert sequence(known).steps == (DIAL,)
