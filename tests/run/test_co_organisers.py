"""A run may have several organisers, and require that several of them sign a document."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from p2ptrain.config.run_file import parse_run_file
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.run import (
    Allowlist,
    Amendment,
    CoOrganisers,
    Run,
    RunManifest,
    Signed,
    SignedAllowlist,
    SignedAmendment,
)

ANN, BOB, CAI = (Identity.from_seed(letter * 32) for letter in (b"a", b"b", b"c"))


def run_of(manifest: RunManifest, organiser: Identity, least: int) -> Run:
    others = CoOrganisers((ANN.peer, BOB.peer), least)
    return Run.publish(organiser, dataclasses.replace(manifest, organisers=others))


Make = Callable[[Run, Identity], SignedAllowlist | SignedAmendment]


def allowlist(run: Run, by: Identity) -> SignedAllowlist:
    return SignedAllowlist.publish(by, Allowlist.of(run.id, 2, [ANN.peer]))


def amendment(run: Run, by: Identity) -> SignedAmendment:
    return SignedAmendment.publish(by, Amendment(run.id, 1, 2, lr=0.001), run)


KINDS = pytest.mark.parametrize("make", [allowlist, amendment])


def test_manifest_names_co_organisers_and_old_manifests_keep_their_bytes(
    manifest: RunManifest, organiser: Identity
) -> None:
    run = run_of(manifest, organiser, 2)
    assert Run.from_bytes(run.to_bytes()) == run
    assert run.manifest.organiser_keys == (organiser.peer, ANN.peer, BOB.peer)
    alone = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(alone, dict)
    assert "organisers" not in alone
    empty = pack({**alone, "organisers": {"peers": [], "signatures_min": 1}})
    with pytest.raises(RemoteProtocolError, match="organisers says nothing"):
        RunManifest.from_payload(empty)


@pytest.mark.parametrize(
    ("peers", "least"),
    [
        (["nobody"], 1),
        ([ANN.peer, ANN.peer], 1),
        ([ANN.peer], 3),
        ([ANN.peer], 0),
        ([Identity.from_seed(bytes([number]) * 32).peer for number in range(8)], 1),
        ([3], 1),
    ],
)
def test_invalid_co_organisers_are_refused(
    peers: list[object], least: int, manifest: RunManifest
) -> None:
    value = unpack(manifest.to_payload(), bytes_max=1 << 20)
    assert isinstance(value, dict)
    value["organisers"] = {"peers": peers, "signatures_min": least}
    with pytest.raises(RemoteProtocolError, match="organisers"):
        RunManifest.from_payload(pack(value))


def test_publisher_is_not_its_own_co_organiser(manifest: RunManifest) -> None:
    with pytest.raises(ValueError, match="organisers"):
        dataclasses.replace(manifest, organisers=CoOrganisers((manifest.organiser,)))


@KINDS
def test_any_organiser_may_sign_if_one_signature_is_enough(
    make: Make, manifest: RunManifest, organiser: Identity
) -> None:
    run = run_of(manifest, organiser, 1)
    for who in (organiser, ANN, BOB):
        made = make(run, who)
        assert type(made).from_bytes(made.to_bytes(), run) == made
    with pytest.raises(RemoteProtocolError, match="is a different peer"):
        made.from_bytes(make(run, CAI).to_bytes(), run)


@KINDS
def test_document_is_valid_once_enough_organisers_have_signed(
    make: Make, manifest: RunManifest, organiser: Identity
) -> None:
    run = run_of(manifest, organiser, 2)
    one = make(run, ANN)
    with pytest.raises(RemoteProtocolError, match="1 signature, but 2 organisers"):
        one.from_bytes(one.to_bytes(), run)
    assert one.from_bytes(one.to_bytes(), run, signatures_min=1) == one
    signed = one.signed.also_by(organiser)
    assert signed.digest == one.signed.digest, "the payload is the same"
    both = one.from_bytes(signed.to_bytes(), run)
    assert set(both.signed.signers) == {ANN.peer, organiser.peer}
    assert signed.also_by(ANN) is signed
    with_stranger = signed.also_by(CAI)
    with pytest.raises(RemoteProtocolError, match="is a different peer"):
        one.from_bytes(with_stranger.to_bytes(), run)


def test_signatures_of_one_peer_count_once_and_altered_ones_are_refused() -> None:
    signed = Signed.by(ANN, "allowlist", b"text").also_by(BOB)
    value = unpack(signed.to_bytes(), bytes_max=1 << 20)
    assert isinstance(value, dict)
    (other,) = value["more"]
    for more in (
        [[value["signer"], value["signature"]]],
        [other, other],
        [[other[0], b"\0" * 64]],
        [["nobody", other[1]]],
        [[other[0]]],
        [other] * 8,
        [],
        1,
    ):
        with pytest.raises(RemoteProtocolError):
            Signed.from_bytes(pack({**value, "more": more}), kind="allowlist", signatures_max=8)
    with pytest.raises(RemoteProtocolError, match="further signatures"):
        Signed.from_bytes(signed.to_bytes(), kind="allowlist")
    assert Signed.from_bytes(signed.to_bytes(), kind="allowlist", signatures_max=2) == signed


def test_run_file_names_co_organisers_and_their_faults_are_explained(
    run_file: object,
) -> None:
    tree = {
        "run": {"name": "x"},
        "model": {
            **dict.fromkeys(("layers", "heads", "kv_heads"), 1),
            **dict.fromkeys(("width", "ffn", "sequence"), 8),
            "vocab": 300,
        },
        "inner": {"steps": 2, "batch_sequences": 1, "lr": 0.1},
        "outer": {"steps": 2},
    }
    good = parse_run_file({**tree, "organisers": {"peers": [ANN.peer], "signatures_min": 2}})
    assert good.organisers.peers == (ANN.peer,)
    for section, said in (
        ({"peers": [ANN.peer], "signatures_min": 3}, "the run has only 2 organisers"),
        ({"signatures_min": 2}, "the run has only 1 organiser,"),
        ({"peers": ["nobody"]}, "'nobody' is not a peer id"),
        ({"peers": [ANN.peer, ANN.peer]}, "listed twice"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_run_file({**tree, "organisers": section})
