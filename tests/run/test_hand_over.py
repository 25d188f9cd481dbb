"""A hand-over replaces an organiser's key. Earlier documents of the old key stay valid."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import Any

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.run import (
    Allowlist,
    Amendment,
    CoOrganisers,
    Denial,
    HandOver,
    Run,
    RunManifest,
    Signed,
    SignedAllowlist,
    SignedAmendment,
    SignedDenial,
    SignedHandOver,
)
from p2ptrain.run.hand_over import HAND_OVERS_MAX
from p2ptrain.run.reading import plain

ANN, BOB, NEW, NEWER, THIEF = (Identity.from_seed(bytes([number]) * 32) for number in range(5))


def run_of(manifest: RunManifest, organiser: Identity, least: int) -> Run:
    others = CoOrganisers((ANN.peer, BOB.peer), least)
    return Run.publish(organiser, dataclasses.replace(manifest, organisers=others))


def hand_over(
    run: Run, old: Identity, new: Identity, *by: Identity, number: int = 1, **changes: Any
) -> SignedHandOver:
    said = HandOver(run.id, number, old.peer, new.peer, 5, 3, 1)
    first, *others = by or (old,)
    made = SignedHandOver.publish(first, dataclasses.replace(said, **changes))
    signed = made.signed
    for other in others:
        signed = signed.also_by(other)
    return SignedHandOver.from_bytes(signed.to_bytes(), run.id)


def list_of(run: Run, sequence: int, by: Identity) -> bytes:
    return SignedAllowlist.publish(by, Allowlist.of(run.id, sequence, [ANN.peer])).to_bytes()


def test_new_key_signs_and_old_documents_stay_valid(
    manifest: RunManifest, organiser: Identity
) -> None:
    run = run_of(manifest, organiser, 1)
    after = run.with_hand_overs([hand_over(run, organiser, NEW)])
    assert after.organisers == (NEW.peer, ANN.peer, BOB.peer)
    assert after.id == run.id
    for sequence, by in ((4, organiser), (9, NEW), (9, ANN)):
        SignedAllowlist.from_bytes(list_of(run, sequence, by), after)
    with pytest.raises(RemoteProtocolError, match="has been replaced") as caught:
        SignedAllowlist.from_bytes(list_of(run, 5, organiser), after)
    assert caught.value.code == "ALLOWLIST-SIGNER"
    for number, is_valid in ((2, True), (3, False)):
        amended = SignedAmendment.publish(organiser, Amendment(run.id, number, 4, lr=0.1), run)
        if is_valid:
            SignedAmendment.from_bytes(amended.to_bytes(), after)
        else:
            with pytest.raises(RemoteProtocolError, match="has been replaced"):
                SignedAmendment.from_bytes(amended.to_bytes(), after)
    denial = SignedDenial.publish(organiser, Denial(run.id, ANN.peer, 1, 2))
    with pytest.raises(RemoteProtocolError, match="has been replaced"):
        SignedDenial.from_bytes(denial.to_bytes(), after)
    with pytest.raises(RemoteProtocolError, match="is a different peer"):
        SignedAllowlist.from_bytes(list_of(run, 9, NEW), run)


def test_chain_of_hand_overs_does_not_depend_on_the_order_of_arrival(
    manifest: RunManifest, organiser: Identity
) -> None:
    """Ann replaces the publisher's lost key, and then her own key."""
    run = run_of(manifest, organiser, 1)
    three = [
        hand_over(run, organiser, NEW, ANN),
        hand_over(run, ANN, NEWER, number=2),
        hand_over(run, NEW, THIEF, NEWER, number=3),
    ]
    for order in permutations(three):
        after = run.with_hand_overs(order)
        assert after.organisers == (THIEF.peer, NEWER.peer, BOB.peer)
        assert after.seat_of(THIEF.peer) == organiser.peer
    assert run.with_hand_overs(three).with_hand_overs(three) == run.with_hand_overs(three)


def test_lost_key_is_replaced_by_as_many_others_as_must_sign(
    manifest: RunManifest, organiser: Identity
) -> None:
    run = run_of(manifest, organiser, 2)
    alone = hand_over(run, organiser, NEW, ANN)
    assert run.with_hand_overs([alone]) == run
    after = run.with_hand_overs([hand_over(run, organiser, NEW, ANN, BOB)])
    assert after.organisers[0] == NEW.peer
    both = SignedAllowlist.publish(NEW, Allowlist.of(run.id, 4, [ANN.peer]))
    signed = both.signed.also_by(organiser)
    with pytest.raises(RemoteProtocolError, match="1 signature, but 2 organisers"):
        SignedAllowlist.from_bytes(signed.to_bytes(), after)


def test_invalid_hand_overs_have_no_effect(manifest: RunManifest, organiser: Identity) -> None:
    run = run_of(manifest, organiser, 1)
    wrong = [
        hand_over(run, organiser, NEW, THIEF),
        hand_over(run, organiser, NEW, ANN, THIEF),
        hand_over(run, THIEF, NEW, organiser),
        hand_over(run, organiser, ANN),
    ]
    assert run.with_hand_overs(wrong) == run
    after = run.with_hand_overs([hand_over(run, organiser, NEW)])
    late = [
        hand_over(run, organiser, THIEF),
        hand_over(run, ANN, THIEF, organiser),
        hand_over(run, NEW, organiser, number=2),
    ]
    assert after.with_hand_overs(late) == after, "the first hand-over of a key stays"


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "x"},
        {"run": "f" * 64},
        {"number": 0},
        {"number": HAND_OVERS_MAX + 1},
        {"old": "nobody"},
        {"new": ANN.peer},
        {"first_list": -1},
        {"x": 1},
    ],
)
def test_malformed_hand_over_is_refused(changes: dict[str, object], run: Run) -> None:
    said = HandOver(run.id, 1, ANN.peer, NEW.peer, 5, 3, 1)
    signed = Signed.by(ANN, "hand-over", pack(plain(said) | changes))
    with pytest.raises(RemoteProtocolError):
        SignedHandOver.from_bytes(signed.to_bytes(), run.id)
