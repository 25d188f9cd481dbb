"""Organisers share their work: several sign, and delegates admit peers. Commands in their homes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.commands.admission import grants
from p2ptrain.cli.commands.run_amend import RunProgress
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name
from p2ptrain.run import (
    CoOrganisers,
    Run,
    load_allowlist,
    load_amendments,
    load_grants,
    save_lists,
)
from p2ptrain.testing.published import publish
from tests.cli.conftest import Command

CAI, DAN, EVE = (Identity.from_seed(bytes([number]) * 32).peer for number in (31, 32, 33))


@dataclass
class Office:
    """The homes of the publisher and of a co-organiser, with the same run."""

    first: Path
    second: Path
    run: Run

    def publish(self) -> None:
        """Bring the newest list and amendments of each home to the other one, as their nodes do."""
        for name in ("allowlist.signed", "amendments.signed", "grants.signed"):
            files = [home / "run" / name for home in (self.first, self.second)]
            found = [file for file in files if file.exists()]
            newest = max(found, key=lambda file: file.stat().st_mtime_ns, default=None)
            for file in files:
                if newest is not None and file != newest:
                    shutil.copy2(newest, file)

    def roles(self, home: Path | None = None) -> dict[PeerId, str]:
        held = load_allowlist(Home(home or self.first).allowlist, self.run)
        roles = held.allowlist.roles if held else {}
        return {p: r for p, r in roles.items() if p in (CAI, DAN, EVE)}


def office(folder: Path, least: int) -> Office:
    first, second = Home(folder / "first"), Home(folder / "second")
    other = load_or_create(second.identity)
    run = publish(first, organisers=CoOrganisers((other.peer,), least), steps=100)
    for file in (first.manifest, first.allowlist):
        if file.exists():
            shutil.copy2(file, second.run)
    return Office(first.root, second.root, run)


def test_each_organiser_approves_alone_if_one_signature_is_enough(
    p2ptrain: Command, tmp_path: Path
) -> None:
    o = office(tmp_path, 1)
    assert p2ptrain("peers", "approve", CAI, "--home", o.second).code == 0
    o.publish()
    assert p2ptrain("peers", "approve", DAN, "--as", "reader", "--home", o.first).code == 0
    assert o.roles() == {CAI: "trainer", DAN: "reader"}
    o.publish()
    assert p2ptrain("peers", "revoke", CAI, "--home", o.second).code == 0
    told = p2ptrain("peers", "ls", "--home", o.second, "--json").json
    assert (told["readers"], told["revoked"]) == ([DAN], [CAI])
    rows = p2ptrain("peers", "ls", "--home", o.second).out
    assert f"{DAN}  reader" in rows
    assert "  organiser" in rows
    outcome = p2ptrain("peers", "approve", CAI, "--as", "boss", "--home", o.second)
    assert (outcome.code, "is not a role" in outcome.err) == (2, True)


def test_next_list_of_an_organiser_contains_the_decisions_of_a_list_that_lost(
    p2ptrain: Command, tmp_path: Path
) -> None:
    o = office(tmp_path, 1)
    for home, peer in ((o.first, CAI), (o.second, DAN)):
        assert p2ptrain("peers", "approve", peer, "--home", home).code == 0
    lost = load_allowlist(Home(o.second).allowlist, o.run)
    assert lost is not None
    save_lists(Home(o.first).to_merge, [lost])
    assert p2ptrain("peers", "approve", EVE, "--home", o.first).code == 0
    assert set(o.roles()) == {CAI, DAN, EVE}


def test_list_is_published_when_enough_organisers_have_signed(
    p2ptrain: Command, tmp_path: Path
) -> None:
    o = office(tmp_path, 2)
    outcome = p2ptrain("peers", "approve", CAI, "--home", o.first)
    assert (outcome.code, o.roles()) == (0, {})
    assert "this allowlist has no effect yet: 1 more organiser must sign it" in outcome.err
    text = outcome.out.strip()
    assert text.startswith("p2ptrain-proposal:")
    signed = p2ptrain("peers", "sign", text, "--home", o.second)
    assert (signed.code, signed.out) == (0, "published: 2 organisers have signed this allowlist\n")
    assert f"{label(CAI)} {CAI}: trainer" in signed.err
    assert o.roles(o.second) == {CAI: "trainer"}
    o.publish()
    told = p2ptrain("peers", "revoke", CAI, "--home", o.second, "--json").json
    assert (told["signatures_missing"], o.roles()) == (1, {CAI: "trainer"})
    other = p2ptrain("peers", "approve", DAN, "--home", o.first).out.strip()
    by_file = p2ptrain("peers", "sign", told["file"], "--home", o.first, "--json").json
    assert by_file["published"] is True
    assert o.roles() == {}
    o.publish()
    outcome = p2ptrain("peers", "sign", other, "--home", o.second)
    assert (outcome.code, outcome.err.split()[0]) == (75, "error[PROPOSAL-OLD]")


def test_amendment_is_published_when_enough_organisers_have_signed(
    p2ptrain: Command, tmp_path: Path
) -> None:
    o = office(tmp_path, 2)
    words = ("--from-step", 9, "--lr", 0.05, "--home", o.first)
    text = p2ptrain("run", "amend", "swarm", *words).out.strip()
    assert load_amendments(Home(o.first).amendments, o.run) == ()
    (o.first / "proposal.txt").write_text(f"{text}\n")
    signed = p2ptrain("peers", "sign", o.first / "proposal.txt", "--home", o.second)
    assert "amendment 1: inner learning rate 0.05 from outer step 9 on" in signed.err
    (made,) = load_amendments(Home(o.second).amendments, o.run)
    assert len(made.signed.signers) == 2
    again = p2ptrain("peers", "sign", text, "--home", o.second)
    assert again.err.split()[0] == "error[PROPOSAL-OLD]"
    told = p2ptrain("run", "amend", "swarm", *words, "--json").json
    assert (told["number"], told["signatures_missing"]) == (1, 1)


@pytest.mark.parametrize(
    "proposal", ["p2ptrain-proposal:abc", "p2ptrain-proposal:!!", "no-such-file", "{junk}"]
)
def test_damaged_proposal_is_refused(proposal: str, p2ptrain: Command, tmp_path: Path) -> None:
    o = office(tmp_path, 2)
    (tmp_path / "junk").write_bytes(b"junk")
    outcome = p2ptrain("peers", "sign", proposal.format(junk=tmp_path / "junk"), "--home", o.second)
    assert (outcome.code, outcome.err.split()[0]) == (2, "error[PROPOSAL]")


def test_invitation_that_admits_needs_one_organiser_only(p2ptrain: Command, tmp_path: Path) -> None:
    for least, code in ((1, 0), (2, 2)):
        o = office(tmp_path / str(least), least)
        load_or_create(o.second / "identity.key")
        words = ("--as", "reader", "--address", "/ip4/127.0.0.1/tcp/4001", "--no-qr")
        outcome = p2ptrain("invite", *words, "--home", o.second, "--json")
        assert outcome.code == code
        if code == 0:
            assert (outcome.json["role"], outcome.json["uses"]) == ("reader", 1)


def delegated(
    p2ptrain: Command, o: Office, monkeypatch: pytest.MonkeyPatch, peer: PeerId
) -> dict[str, Any]:
    """Let `peer` be a delegate, and the members have agreed on it."""
    words = ("peers", "delegate", peer, "--from-step", 9, "--home", o.first, "--json")
    told = p2ptrain(*words).json
    o.publish()
    agreed = tuple(each.digest for each in load_amendments(Home(o.first).amendments, o.run))
    monkeypatch.setattr(grants, "course_of", lambda where, run: RunProgress(12, agreed))
    return told


def test_delegate_admits_a_peer_with_a_grant_from_its_own_home(
    p2ptrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    o = office(tmp_path, 1)
    third = Home(tmp_path / "third")
    me = load_or_create(third.identity).peer
    for name in ("manifest.signed", "allowlist.signed"):
        shutil.copy2(o.first / "run" / name, third.run)
    refused = p2ptrain("peers", "approve", CAI, "--home", third.root)
    assert refused.err.split()[0] == "error[AUTH-ORGANISER]"
    told = delegated(p2ptrain, o, monkeypatch, me)
    assert (told["number"], told["admitters"]) == (1, [me])
    shutil.copy2(o.first / "run" / "amendments.signed", third.run)
    assert p2ptrain("peers", "approve", CAI, "--home", third.root).code == 0
    again = p2ptrain("peers", "approve", CAI, "--home", third.root, "--json").json
    assert again["changed"] is False
    p2ptrain("peers", "approve", DAN, "--as", "reader", "--home", third.root)
    kept = [each.grant for each in load_grants(third.grants, o.run)]
    assert [(each.peer, each.number, each.role, each.amendment) for each in kept] == [
        (CAI, 1, "trainer", 1),
        (DAN, 2, "reader", 1),
    ]
    shown = p2ptrain("peers", "ls", "--home", third.root)
    assert f"{CAI}  admitted by {label(me)}" in shown.out
    for each in (o.first, o.second):
        shutil.copy2(third.grants, each / "run")
    assert p2ptrain("peers", "revoke", DAN, "--home", o.first).code == 0
    shutil.copy2(o.first / "run" / "allowlist.signed", third.run)
    refused = p2ptrain("peers", "approve", DAN, "--home", third.root)
    assert refused.err.split()[0] == "error[GRANT-REVOKED]"
    assert p2ptrain("peers", "deny", EVE, "--home", o.first).code == 0
    o.publish()
    assert EVE in p2ptrain("peers", "ls", "--home", o.first, "--json").json["revoked"]
    words = ("peers", "delegate", "--revoke", me, "--from-step", 20)
    ended = p2ptrain(*words, "--home", o.second, "--json").json
    assert (ended["admitters"], ended["kept_peers"]) == ([], [CAI])
    assert o.roles(o.second) == {CAI: "trainer"}
    again_refused = p2ptrain(*words, "--home", o.second)
    assert "is not a delegate already" in again_refused.err


def test_organisers_key_is_replaced_and_the_old_one_signs_nothing_new(
    p2ptrain: Command, tmp_path: Path
) -> None:
    o = office(tmp_path, 1)
    third = Home(tmp_path / "third")
    new = load_or_create(third.identity).peer
    for home, peer in ((o.first, CAI), (o.second, DAN)):
        o.publish()
        p2ptrain("peers", "approve", peer, "--home", home)
    o.publish()
    told = p2ptrain("run", "hand-over", new, "--home", o.first, "--json").json
    assert (told["old"], told["new"]) == (o.run.manifest.organiser, new)
    for name in ("manifest.signed", "allowlist.signed", "hand-overs.signed"):
        shutil.copy2(o.first / "run" / name, third.run)
    refused = p2ptrain("peers", "approve", EVE, "--home", o.first)
    assert refused.err.split()[0] == "error[AUTH-ORGANISER]"
    assert p2ptrain("peers", "approve", EVE, "--home", third.root).code == 0
    shown = p2ptrain("run", "show", "--home", third.root)
    assert f"is replaced by {label(new)}" in shown.out
    again = p2ptrain("run", "hand-over", new, "--lost", told["old"], "--home", third.root)
    assert again.err.split()[0] == "error[HAND-OVER-KEY]"


def test_lost_key_is_replaced_by_the_other_organisers_and_not_if_there_are_none(
    p2ptrain: Command, tmp_path: Path, organiser_home: Path
) -> None:
    o = office(tmp_path, 1)
    p2ptrain("peers", "approve", CAI, "--home", o.first)
    o.publish()
    lost = o.run.manifest.organiser
    told = p2ptrain(
        *("run", "hand-over", peer_name(CAI), "--lost", peer_name(lost)),
        *("--home", o.second, "--json"),
    ).json
    assert (told["old"], told["new"]) == (lost, CAI)
    outcome = p2ptrain("run", "hand-over", CAI, "--lost", DAN, "--home", organiser_home)
    assert outcome.err.split()[0] == "error[HAND-OVER-ALONE]"
    two = office(tmp_path / "two", 2)
    text = p2ptrain("run", "hand-over", CAI, "--home", two.first).out.strip()
    signed = p2ptrain("peers", "sign", text, "--home", two.second)
    assert (signed.code, f"is replaced by {CAI}" in signed.err) == (0, True)
    assert (two.second / "run" / "hand-overs.signed").exists()


def test_votes_are_delegated_in_an_open_run_only(p2ptrain: Command, tmp_path: Path) -> None:
    listed = office(tmp_path / "listed", 1)
    refused = p2ptrain("peers", "delegate", "--vote", CAI, "--home", listed.first)
    assert (refused.code, "every member that has trained votes" in refused.err) == (2, True)
    home = Home(tmp_path / "open")
    publish(home, admission="open", steps=100)
    refused = p2ptrain("peers", "delegate", CAI, "--home", home.root)
    assert (refused.code, "add --vote" in refused.err) == (2, True)
    words = ("peers", "delegate", "--vote", "--json", "--home", home.root)
    for number, (peer, named) in enumerate([(CAI, [CAI]), (DAN, sorted([CAI, DAN]))], start=1):
        told = p2ptrain(*words, peer, "--from-step", 8 + number).json
        assert (told["number"], told["voters"], told["kept_peers"]) == (number, named, [])
    ended = p2ptrain(*words, "--revoke", label(CAI).split()[0], "--from-step", 20).json
    assert ended["voters"] == [DAN]
