"""The newest allowlist that the organiser has signed decides which peers may take part, besides the
organiser and the founders. An open run admits every peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch, StoreFull
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.run import (
    Allowlist,
    Amendment,
    CoOrganisers,
    Grant,
    Run,
    SignedAllowlist,
    SignedAmendment,
    SignedGrant,
    save_allowlist,
    save_amendments,
    save_grants,
)
from p2ptrain.run.grant import GRANTS_MAX, delegations, encode_grants, merged_grants
from p2ptrain.testing.published import publish
from tests.node.rig import ANN, BOB, CAI, somebody
from tests.process_limits import no_file_grows


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Run:
    return publish(home, allowed=[ANN.peer])


@pytest.fixture
def organiser(home: Home, run: Run) -> Identity:
    return load_or_create(home.identity)


@pytest.fixture
def admission(home: Home, run: Run) -> Admission:
    known = Admission(home)
    known.set_run(run)
    return known


def listed(run: Run, sequence: int, *peers: PeerId, by: Identity) -> SignedAllowlist:
    """Return an allowlist with these peers, signed by `by`. A higher `sequence` is newer."""
    return SignedAllowlist.publish(by, Allowlist.of(run.id, sequence, peers))


def test_no_peer_is_admitted_before_the_run_is_known(home: Home, run: Run) -> None:
    without_run = Admission(home)
    assert not without_run.admits(run.manifest.organiser)
    assert not without_run.is_open


def test_organiser_founders_and_listed_peers_are_admitted(admission: Admission, run: Run) -> None:
    assert admission.admits(run.manifest.organiser)
    assert admission.admits(ANN.peer)
    assert not admission.admits(BOB.peer)
    assert admission.members_allowed() == {run.manifest.organiser, ANN.peer}


def test_every_valid_peer_id_is_admitted_to_an_open_run(tmp_path: Path) -> None:
    home = Home(tmp_path / "open")
    admission = Admission(home)
    admission.set_run(publish(home, admission="open"))
    assert admission.admits(BOB.peer)
    members = admission.members_allowed()
    assert BOB.peer in members
    assert "nobody" not in members


def test_newer_allowlist_replaces_the_old_one_and_survives_a_restart(
    admission: Admission, home: Home, run: Run, organiser: Identity
) -> None:
    assert admission.adopt_if_newer(listed(run, 5, BOB.peer, by=organiser).to_bytes())
    assert (admission.admits(ANN.peer), admission.admits(BOB.peer)) == (False, True)
    restarted = Admission(home)
    restarted.set_run(run)
    assert restarted.admits(BOB.peer)


@pytest.mark.parametrize("sequence", [1, 4])
def test_allowlist_that_is_not_newer_has_no_effect(
    admission: Admission, run: Run, organiser: Identity, sequence: int
) -> None:
    admission.adopt_if_newer(listed(run, 5, BOB.peer, by=organiser).to_bytes())
    assert not admission.adopt_if_newer(listed(run, sequence, CAI.peer, by=organiser).to_bytes())
    assert (admission.admits(BOB.peer), admission.admits(CAI.peer)) == (True, False)


def test_allowlist_that_a_different_peer_signed_is_refused(admission: Admission, run: Run) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        admission.adopt_if_newer(listed(run, 9, CAI.peer, by=CAI).to_bytes())
    assert caught.value.code == "ALLOWLIST-SIGNER"
    assert not admission.admits(CAI.peer)


def test_allowlist_of_a_different_run_is_refused(
    admission: Admission, run: Run, organiser: Identity
) -> None:
    other = SignedAllowlist.publish(organiser, Allowlist.of(RunId("f" * 64), 9, [CAI.peer]))
    with pytest.raises(RunMismatch):
        admission.adopt_if_newer(other.to_bytes())


def test_truncated_allowlist_is_refused(
    admission: Admission, run: Run, organiser: Identity
) -> None:
    data = listed(run, 9, CAI.peer, by=organiser).to_bytes()
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(RemoteProtocolError):
            admission.adopt_if_newer(data[:cut])
    assert not admission.admits(CAI.peer)


def test_allowlist_that_the_allow_command_wrote_to_the_home_is_loaded(
    admission: Admission, home: Home, run: Run, organiser: Identity
) -> None:
    assert not admission.reload()
    save_allowlist(home.allowlist, listed(run, 2, CAI.peer, by=organiser))
    assert admission.reload()
    assert admission.admits(CAI.peer)


def test_damaged_allowlist_in_the_home_is_reported_as_a_local_error(
    admission: Admission, home: Home
) -> None:
    home.allowlist.write_bytes(b"not a list")
    with pytest.raises(ConfigError) as caught:
        admission.reload()
    assert caught.value.code == "RUN-FILE"
    assert admission.admits(ANN.peer)


def test_allowlist_that_cannot_be_stored_is_not_used(
    admission: Admission, run: Run, organiser: Identity
) -> None:
    with no_file_grows(), pytest.raises(StoreFull) as caught:
        admission.adopt_if_newer(listed(run, 5, BOB.peer, by=organiser).to_bytes())
    assert caught.value.code == "DISK-LOW"
    assert (admission.admits(ANN.peer), admission.admits(BOB.peer)) == (True, False)


def grant(
    run: Run, peer: PeerId, by: Identity = ANN, *, amendment: int = 1, number: int = 1, **rest: Any
) -> SignedGrant:
    return SignedGrant.publish(by, Grant(run.id, peer, amendment, number, 1_790_000_000, **rest))


def naming(run: Run, number: int, *admitters: PeerId) -> Amendment:
    return Amendment(run.id, number, number, admitters=tuple(sorted(admitters)))


def test_grant_of_a_delegate_admits_a_peer_and_survives_a_restart(
    admission: Admission, home: Home, run: Run, organiser: Identity
) -> None:
    granted = encode_grants([grant(run, BOB.peer), grant(run, CAI.peer, number=2, role="reader")])
    assert not admission.adopt_grants(granted), "Ann is not a delegate yet"
    named = naming(run, 1, ANN.peer)
    assert admission.set_agreed([named])
    assert not admission.set_agreed([named])
    assert admission.adopt_grants(granted)
    assert not admission.adopt_grants(granted)
    assert (admission.may_train(BOB.peer), admission.is_reader(BOB.peer)) == (True, False)
    assert (admission.admits(CAI.peer), admission.may_train(CAI.peer)) == (True, False)
    assert admission.is_reader(CAI.peer)
    assert admission.decides(ANN.peer)
    assert not admission.decides(BOB.peer)
    assert BOB.peer in admission.members_allowed()
    assert CAI.peer not in admission.members_allowed(), "the ledger never admits a reader"
    save_amendments(home.amendments, [SignedAmendment.publish(organiser, named, run)])
    restarted = Admission(home)
    restarted.set_run(run)
    assert restarted.admits(BOB.peer)


def test_grant_of_a_stranger_or_under_another_amendment_is_ignored(
    admission: Admission, run: Run
) -> None:
    admission.set_agreed([naming(run, 2, ANN.peer)])
    wrong = [grant(run, BOB.peer, by=CAI, amendment=2), grant(run, BOB.peer, amendment=1)]
    assert not admission.adopt_grants(encode_grants(wrong))
    assert admission.grants == ()
    with pytest.raises(RemoteProtocolError):
        admission.adopt_grants(b"\x90" * 10)


def test_grants_end_with_the_delegation_and_do_not_come_back(
    admission: Admission, run: Run
) -> None:
    """A former delegate could date a grant back, so the grants of former delegates do not count."""
    first, other = naming(run, 1, ANN.peer), naming(run, 2, ANN.peer, CAI.peer)
    admission.set_agreed([first])
    admission.adopt_grants(encode_grants([grant(run, BOB.peer)]))
    admission.set_agreed([first, other])
    assert admission.admits(BOB.peer), "a further delegate changes nothing"
    over = naming(run, 3, CAI.peer)
    assert admission.would_admit(BOB.peer, [first, other])
    assert not admission.would_admit(BOB.peer, [over, first, other])
    admission.set_agreed([first, other, over])
    assert not admission.admits(BOB.peer)
    admission.set_agreed([first, other, over, naming(run, 4, ANN.peer)])
    assert not admission.admits(BOB.peer)


def test_organisers_revocation_and_role_outrank_grants(
    admission: Admission, run: Run, organiser: Identity
) -> None:
    admission.set_agreed([naming(run, 1, ANN.peer)])
    admission.adopt_grants(encode_grants([grant(run, BOB.peer), grant(run, CAI.peer, number=2)]))
    assert admission.allowlist is not None
    after = admission.allowlist.allowlist.without_peer(BOB.peer, tracks=True)
    after = after.with_peer(CAI.peer, "reader")
    assert admission.adopt_if_newer(SignedAllowlist.publish(organiser, after).to_bytes())
    assert not admission.admits(BOB.peer)
    assert admission.is_revoked(BOB.peer)
    assert admission.is_reader(CAI.peer)


def test_grants_are_bounded_and_do_not_depend_on_the_order_of_arrival(run: Run) -> None:
    many = [somebody(number) for number in range(20)]
    counts = delegations([naming(run, 1, *(each.peer for each in many[:16]))])
    all_grants = [
        grant(run, somebody(1000 + number).peer, by, number=number)
        for by in many
        for number in range(1, 33)
    ]
    twin = grant(run, BOB.peer, many[0], number=1)
    forwards = merged_grants([], [*all_grants, twin], counts)
    backwards = merged_grants([twin], all_grants[::-1], counts)
    assert forwards == backwards
    assert len(forwards) == GRANTS_MAX
    assert all(each.counts(counts) for each in forwards)


def test_grants_that_a_command_wrote_to_the_home_are_loaded(
    admission: Admission, home: Home, run: Run
) -> None:
    admission.set_agreed([naming(run, 1, ANN.peer)])
    assert not admission.reload_grants()
    save_grants(home.grants, [grant(run, BOB.peer)])
    assert admission.reload_grants()
    assert admission.admits(BOB.peer)


def test_organisers_node_keeps_the_list_that_loses_until_it_is_merged(tmp_path: Path) -> None:
    home = Home(tmp_path / "several")
    run = publish(home, organisers=CoOrganisers((ANN.peer,)))
    first = load_or_create(home.identity)
    base = Allowlist.of(run.id, 1, [first.peer, ANN.peer])
    mine = SignedAllowlist.publish(first, base.with_peer(BOB.peer))
    theirs = SignedAllowlist.publish(ANN, base.with_peer(CAI.peer))
    winner = min(mine, theirs, key=lambda each: each.signed.digest)
    for order in ((mine, theirs), (theirs, mine)):
        save_allowlist(home.allowlist, SignedAllowlist.publish(first, base))
        home.to_merge.unlink(missing_ok=True)
        for me, waiting in ((first.peer, 1), (CAI.peer, 0)):
            admission = Admission(home, me)
            admission.set_run(run)
            for each in order:
                admission.adopt_if_newer(each.to_bytes())
                admission.adopt_if_newer(each.to_bytes())
            assert admission.allowlist == winner
            assert len(admission.to_merge) == waiting
    restarted = Admission(home, first.peer)
    restarted.set_run(run)
    (lost,) = restarted.to_merge
    assert {lost, winner} == {mine, theirs}
    both = winner.allowlist.merged(lost.allowlist)
    assert restarted.adopt_if_newer(SignedAllowlist.publish(ANN, both).to_bytes())
    assert restarted.to_merge == ()
    assert restarted.admits(BOB.peer)
    assert restarted.admits(CAI.peer)
