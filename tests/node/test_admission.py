"""The newest allowlist that the organiser has signed decides which peers may take part, besides the
organiser and the founders. An open run admits every peer."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from p2ptrain.archive import admission as module
from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch, StoreFull
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.run import Allowlist, Run, SignedAllowlist, save_allowlist
from p2ptrain.testing.published import publish
from tests.node.rig import ANN, BOB, CAI


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


@pytest.mark.parametrize("sequence", [1, 4, 5])
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
    admission: Admission, run: Run, organiser: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, allowlist: SignedAllowlist) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_allowlist", full)
    with pytest.raises(StoreFull) as caught:
        admission.adopt_if_newer(listed(run, 5, BOB.peer, by=organiser).to_bytes())
    assert caught.value.code == "DISK-LOW"
    assert (admission.admits(ANN.peer), admission.admits(BOB.peer)) == (True, False)
