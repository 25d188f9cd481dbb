"""The organiser decides who may take part, and a node that runs in the same home is notified at
once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.commands.admission.allow_checks import check_quorum
from p2ptrain.errors import TryLater
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name
from p2ptrain.run import Allowlist, SignedAllowlist, load_allowlist, load_run, save_allowlist
from p2ptrain.testing.published import policy, publish
from tests.cli.conftest import Command, Outcome, fake_node
from tests.cli.histories import make_history

PEER, OTHER, THIRD = (Identity.from_seed(bytes([number]) * 32).peer for number in (7, 8, 9))


def says(*others: str, heard: int = 0, voters: Sequence[str] = ()) -> bytes:
    """Return a node's reply after it has asked its neighbours: `heard` of the `others` answered."""
    told = {"sequence": 1, "heard": heard, "others": others, "voters": voters}
    return json.dumps(told).encode() + b"\n"


def listed(home: Path) -> tuple[int, set[PeerId]]:
    """Return the sequence number and the peers on disk, without the organiser, after checking the
    signature.
    """
    run = load_run(Home(home).manifest)
    assert run is not None
    signed = load_allowlist(Home(home).allowlist, run)
    assert signed is not None
    peers = set(signed.allowlist.peers)
    assert run.manifest.organiser in peers
    return signed.allowlist.sequence, peers - {run.manifest.organiser}


def test_adding_and_removing_a_peer_each_raise_the_sequence_number(
    p2ptrain: Command, organiser_home: Path
) -> None:
    assert listed(organiser_home) == (1, set())
    assert p2ptrain("allow", "add", PEER, "--home", organiser_home).code == 0
    assert listed(organiser_home) == (2, {PEER})
    assert p2ptrain("allow", "remove", PEER, "--home", organiser_home).code == 0
    assert listed(organiser_home) == (3, set())


def test_change_without_effect_does_not_sign_a_new_list(
    p2ptrain: Command, organiser_home: Path
) -> None:
    p2ptrain("allow", "add", PEER, "--home", organiser_home)
    again = p2ptrain("allow", "add", PEER, "--home", organiser_home, "--json")
    assert again.json["changed"] is False
    assert listed(organiser_home) == (2, {PEER})


def test_allow_list_shows_the_sequence_number_and_the_peers(
    p2ptrain: Command, organiser_home: Path
) -> None:
    p2ptrain("allow", "add", PEER, "--home", organiser_home)
    plain = p2ptrain("allow", "list", "--home", organiser_home)
    value = p2ptrain("allow", "list", "--home", organiser_home, "--json").json
    assert len(plain.out.splitlines()) == 2
    assert PEER in plain.out
    assert value["sequence"] == 2
    assert PEER in value["peers"]


def test_suggested_command_can_be_pasted_into_a_shell(
    p2ptrain: Command, organiser_home: Path
) -> None:
    home = organiser_home.rename(organiser_home.with_name("an organiser's"))
    with fake_node(home, json.dumps({"pending": [PEER]}).encode() + b"\n"):
        told = p2ptrain("allow", "list", "--home", home).err
    program, *words = shlex.split(told.partition("asks to join: ")[2].splitlines()[0])
    assert program == "p2ptrain"
    (home / "control.sock").unlink()
    assert p2ptrain(*words).code == 0
    assert listed(home) == (2, {PEER})


def test_peer_that_cannot_admit_others_learns_who_can(
    p2ptrain: Command, organiser_home: Path
) -> None:
    run = load_run(Home(organiser_home).manifest)
    assert run is not None
    (organiser_home / "identity.key").unlink()
    load_or_create(organiser_home / "identity.key")
    with fake_node(organiser_home, json.dumps({"pending": [PEER]}).encode() + b"\n"):
        told = p2ptrain("allow", "list", "--home", organiser_home).err
    asked = told.partition("asks to join: ")[2]
    organiser = label(run.manifest.organiser)
    assert asked.startswith(
        f"only the organiser, {organiser}, can admit it; send the organiser this peer id: {PEER}\n"
    )


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (None, "NO-NODE", "no node is running in"),
        (b'{"error": "it is starting", "code": "NOT-YET"}\n', "NOT-YET", "it is starting"),
    ],
)
def test_pending_requests_are_unknown_if_the_node_does_not_answer(
    reply: bytes | None, code: str, said: str, p2ptrain: Command, organiser_home: Path
) -> None:
    def listed(*words: str) -> Outcome:
        with nullcontext() if reply is None else fake_node(organiser_home, reply):
            outcome = p2ptrain("allow", "list", "--home", organiser_home, *words)
        (organiser_home / "control.sock").unlink(missing_ok=True)
        return outcome

    told = listed("--json").json
    assert (told["pending"], told["pending_unknown"]) == ([], code)
    assert f"pending requests to join are not known: {said}" in listed().err


def test_running_node_is_notified_of_a_changed_list(
    p2ptrain: Command, organiser_home: Path
) -> None:
    with fake_node(organiser_home, says(), b'{"newer":true}\n') as requests:
        outcome = p2ptrain("allow", "add", PEER, "--home", organiser_home)
    assert requests == [{"command": "newest-allowlist"}, {"command": "reload-allowlist"}]
    assert outcome.code == 0
    assert "no node is running in this home" not in outcome.err


@pytest.mark.parametrize("reply", [b"", b"junk\n", b"[]\n", b'{"error":"no"}\n'])
def test_malformed_answer_of_a_node_does_not_undo_the_change(
    reply: bytes, p2ptrain: Command, organiser_home: Path
) -> None:
    with fake_node(organiser_home, says(), reply):
        outcome = p2ptrain("allow", "add", PEER, "--home", organiser_home)
    assert outcome.code == 0
    assert "the node in this home could not be notified" in outcome.err
    assert listed(organiser_home) == (2, {PEER})


def test_organiser_is_warned_that_no_node_is_running(
    p2ptrain: Command, organiser_home: Path
) -> None:
    assert (
        "no node is running in this home"
        in p2ptrain("allow", "add", PEER, "--home", organiser_home).err
    )


def test_only_the_organiser_can_change_the_list(p2ptrain: Command, organiser_home: Path) -> None:
    (organiser_home / "identity.key").unlink()
    stranger = load_or_create(organiser_home / "identity.key")
    run = load_run(Home(organiser_home).manifest)
    assert run is not None
    assert stranger.peer != run.manifest.organiser
    outcome = p2ptrain("allow", "add", PEER, "--home", organiser_home)
    assert outcome.code == 6
    assert outcome.err.startswith("error[AUTH-ORGANISER]")
    assert listed(organiser_home) == (1, set())


def test_home_restored_without_its_key_gets_no_new_one(
    p2ptrain: Command, organiser_home: Path
) -> None:
    (organiser_home / "identity.key").unlink()
    outcome = p2ptrain("allow", "add", PEER, "--home", organiser_home)
    assert outcome.code == 6
    assert f"there is no key in {organiser_home}" in outcome.err
    assert not (organiser_home / "identity.key").exists()


@pytest.mark.parametrize("text", ["nobody", "", "12D3KooW", "/ip4/1.2.3.4/tcp/1"])
def test_malformed_peer_id_is_refused(text: str, p2ptrain: Command, organiser_home: Path) -> None:
    outcome = p2ptrain("allow", "add", text, "--home", organiser_home)
    assert outcome.code == 2
    assert "error[PEER-UNKNOWN]" in outcome.err


def test_listed_peer_is_removed_by_its_name_or_a_part_of_its_id(
    p2ptrain: Command, organiser_home: Path
) -> None:
    for text in (peer_name(PEER), PEER[:16], PEER[-6:]):
        assert p2ptrain("allow", "add", PEER, "--home", organiser_home).code == 0
        assert p2ptrain("allow", "remove", text, "--home", organiser_home).code == 0
        assert listed(organiser_home)[1] == set()


def test_full_address_is_accepted_in_place_of_a_peer_id(
    p2ptrain: Command, organiser_home: Path
) -> None:
    address = f"/ip4/203.0.113.7/tcp/4201/p2p/{PEER}"
    assert p2ptrain("allow", "add", address, "--home", organiser_home).code == 0
    assert listed(organiser_home) == (2, {PEER})


def test_forged_list_on_disk_is_not_extended(p2ptrain: Command, organiser_home: Path) -> None:
    path = organiser_home / "run" / "allowlist.signed"
    data = bytearray(path.read_bytes())
    data[-80] ^= 1
    path.write_bytes(bytes(data))
    outcome = p2ptrain("allow", "add", PEER, "--home", organiser_home)
    assert outcome.code == 2
    assert "error[RUN-FILE]" in outcome.err
    assert path.read_bytes() == bytes(data)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the organiser's home, for a run that has begun."""
    home = Home(tmp_path / "begun")
    make_history(home, publish(home, rules=policy(participants_min=1)), 2)
    return home.root


def test_sequence_number_that_may_be_in_use_is_not_signed_again(
    p2ptrain: Command, begun: Path
) -> None:
    """If the home was restored from a backup, other peers may hold another list with number 2."""
    words = ("allow", "add", PEER, "--home", begun)
    outcome = p2ptrain(*words)
    assert (outcome.code, outcome.err.split()[0]) == (75, "error[ALLOW-UNHEARD]")
    assert "no node is running in this home" in outcome.err
    assert listed(begun) == (1, set())
    assert p2ptrain(*words, "--anyway").code == 0
    assert listed(begun) == (2, {PEER})


def test_list_is_signed_only_if_other_peers_answer_or_there_are_none(
    p2ptrain: Command, begun: Path
) -> None:
    words = ("allow", "add", PEER, "--home", begun)
    with fake_node(begun, says(OTHER)):
        outcome = p2ptrain(*words)
    assert outcome.err.startswith("error[ALLOW-UNHEARD] the node in this home is not connected")
    assert listed(begun) == (1, set())
    (begun / "control.sock").unlink()
    with fake_node(begun, says(), b'{"newer":true}\n'):
        assert p2ptrain(*words).code == 0


@pytest.mark.parametrize("reply", [b"{}", b'{"heard":1,"others":[7],"voters":[]}'], ids=str)
def test_malformed_answer_about_allowlists_is_an_error(
    reply: bytes, p2ptrain: Command, begun: Path
) -> None:
    with fake_node(begun, reply + b"\n"):
        assert p2ptrain("allow", "add", PEER, "--home", begun).code != 0
    assert listed(begun) == (1, set())


def test_voters_are_removed_from_the_list_one_roster_at_a_time(
    p2ptrain: Command, organiser_home: Path
) -> None:
    """If two of three voters were removed at once, too few voters would be left to agree on the
    next roster (list of members)."""
    run = load_run(Home(organiser_home).manifest)
    assert run is not None
    organiser = load_or_create(organiser_home / "identity.key")
    everybody = Allowlist.of(run.id, 2, [organiser.peer, PEER, OTHER, THIRD])
    save_allowlist(Home(organiser_home).allowlist, SignedAllowlist.publish(organiser, everybody))

    def removed(peer: str, *voters: str) -> str:
        told = says(PEER, OTHER, heard=2, voters=[organiser.peer, *voters])
        (organiser_home / "control.sock").unlink(missing_ok=True)
        replies = [told] if "too few" in expected else [told, b'{"newer":true}\n']
        with fake_node(organiser_home, *replies):
            return p2ptrain("allow", "remove", peer, "--home", organiser_home).err

    expected = "is off the allowlist (now number 3)"
    assert expected in removed(PEER, PEER, OTHER)
    expected = "error[ALLOW-QUORUM] this list would leave too few"
    refused = removed(OTHER, PEER, OTHER)
    assert expected in refused
    assert PEER in refused
    assert listed(organiser_home) == (3, {OTHER, THIRD})
    expected = "is off the allowlist (now number 4)"
    assert expected in removed(OTHER, OTHER, THIRD), "in the next roster, THIRD votes, not PEER"


def test_founders_vote_whether_or_not_they_are_on_the_list(tmp_path: Path) -> None:
    run = publish(Home(tmp_path), founders=(PEER, OTHER))
    alone = Allowlist.of(run.id, 3, [run.manifest.organiser])
    # Without THIRD, two of three voters remain, which is a quorum.
    check_quorum(run, (PEER, OTHER, THIRD), alone, THIRD)
    with pytest.raises(TryLater) as raised:
        check_quorum(run, (THIRD, PEER), alone, THIRD)
    assert (raised.value.code, len(raised.value.evidence)) == ("ALLOW-QUORUM", 2)
    assert THIRD in raised.value.evidence[1]
