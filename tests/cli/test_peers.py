"""The organiser sees who asks to join, and approves, denies and revokes peers by name or id."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.durations import age, parse_duration
from p2ptrain.cli.peer_choice import chosen_peer
from p2ptrain.errors import ConfigError
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name
from p2ptrain.run import Run, load_allowlist, load_denials, load_run
from tests.cli.conftest import Command, fake_node


def somebody(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32, "big")).peer


ANN, BOB, CAI = map(somebody, (7, 8, 9))
TWIN = next(peer for peer in map(somebody, count(100)) if peer_name(peer) == peer_name(ANN))
"""A peer with Ann's name. It takes a second to find one."""


def asks(peer: PeerId, note: str = "", age_s: float = 250.0, via: str = "") -> dict[str, object]:
    return {"peer": peer, "note": note, "age_s": age_s, "via": via}


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


HEARD = line({"sequence": 1, "heard": 0, "others": [], "voters": []})
DONE = line({"newer": True})


@contextmanager
def node_with(
    home: Path, requests: list[dict[str, object]], *more: bytes
) -> Iterator[list[dict[str, Any]]]:
    with fake_node(home, line({"requests": requests}), *more) as asked:
        yield asked
    (home / "control.sock").unlink()


def run_in(home: Path) -> Run:
    run = load_run(Home(home).manifest)
    assert run is not None
    return run


def listed(home: Path) -> set[PeerId]:
    signed = load_allowlist(Home(home).allowlist, run_in(home))
    assert signed is not None
    return set(signed.allowlist.peers) - {run_in(home).manifest.organiser}


def denied(home: Path) -> list[tuple[PeerId, str]]:
    found = [each.denial for each in load_denials(Home(home).denials, run_in(home))]
    return [(each.peer, each.reason) for each in found]


def test_pending_shows_who_asks_for_how_long_with_what_machine_and_through_whom(
    p2ptrain: Command, organiser_home: Path
) -> None:
    stated = {"device": "cuda", "reach": "private"}
    ann = asks(ANN, "Ada\x1b[2J " + "x" * 200, via=BOB) | stated
    requests = [ann, asks(CAI, age_s=3.0) | {"device": "none"}, asks(BOB, age_s=2.0)]
    with node_with(organiser_home, [*requests, {"peer": "nobody"}, asks(PeerId("x"))]) as asked:
        outcome = p2ptrain("peers", "pending", "--home", organiser_home)
    assert asked == [{"command": "join-requests"}]
    first, second, third = outcome.out.splitlines()
    machine = "cuda, is probably behind a router (as reported)"
    note = ("Ada·[2J " + "x" * 200)[:80]
    assert first == f'{peer_name(ANN)}  {ANN}  4 min  {machine}  through {label(BOB)}  "{note}"'
    assert second == f"{peer_name(CAI)}  {CAI}  3 s  does not train (as reported)"
    assert third == f"{peer_name(BOB)}  {BOB}  2 s"
    assert f"p2ptrain peers approve {ANN} --home {organiser_home}" in outcome.err
    with node_with(organiser_home, requests[1:2]):
        told = p2ptrain("peers", "pending", "--home", organiser_home, "--json").json
    (row,) = told["requests"]
    assert row == {
        "peer": CAI,
        "name": peer_name(CAI),
        "note": "",
        "age_s": 3.0,
        "via": None,
        "device": "none",
        "reach": "",
    }
    with node_with(organiser_home, []):
        assert p2ptrain("peers", "pending", "--home", organiser_home).err == "nobody asks to join\n"


def test_pending_needs_a_running_node(p2ptrain: Command, organiser_home: Path) -> None:
    outcome = p2ptrain("peers", "pending", "--home", organiser_home)
    assert (outcome.code, outcome.out) == (75, "")
    assert outcome.err.startswith("error[NO-NODE]")


def test_peer_that_cannot_decide_learns_who_can(p2ptrain: Command, organiser_home: Path) -> None:
    organiser = run_in(organiser_home).manifest.organiser
    (organiser_home / "identity.key").unlink()
    load_or_create(organiser_home / "identity.key")
    with node_with(organiser_home, [asks(ANN)]):
        outcome = p2ptrain("peers", "pending", "--home", organiser_home)
    assert f"only the organiser, {label(organiser)}, can admit them" in outcome.err
    for words in (["approve", ANN], ["deny", ANN], ["revoke", organiser]):
        outcome = p2ptrain("peers", *words, "--home", organiser_home)
        assert (outcome.code, outcome.err.split()[0]) == (6, "error[AUTH-ORGANISER]")


@pytest.mark.parametrize("text", [peer_name(ANN), peer_name(ANN).upper(), ANN[:14], ANN[-6:], ANN])
def test_pending_peer_is_approved_by_name_or_part_of_its_id(
    text: str, p2ptrain: Command, organiser_home: Path
) -> None:
    with node_with(organiser_home, [asks(ANN), asks(BOB)], HEARD, DONE) as asked:
        outcome = p2ptrain("peers", "approve", text, "--home", organiser_home)
    assert outcome.code == 0
    names = ["join-requests", "newest-allowlist", "reload-allowlist"]
    assert [each["command"] for each in asked] == names
    assert listed(organiser_home) == {ANN}
    assert f"{label(ANN)} is on the allowlist (now number 2)" in outcome.err
    assert f"its whole id is {ANN}" in outcome.err


def test_ambiguous_name_changes_nothing_and_lists_the_candidates(
    p2ptrain: Command, organiser_home: Path
) -> None:
    with node_with(organiser_home, [asks(ANN), asks(TWIN), asks(BOB)]):
        outcome = p2ptrain("peers", "approve", peer_name(ANN), "--home", organiser_home)
    assert (outcome.code, listed(organiser_home)) == (2, set())
    assert outcome.err.startswith("error[PEER-AMBIGUOUS]")
    assert ANN in outcome.err
    assert TWIN in outcome.err
    assert BOB not in outcome.err


def test_unknown_name_lists_all_candidates_and_why_some_may_be_missing(
    p2ptrain: Command, organiser_home: Path
) -> None:
    p2ptrain("peers", "approve", ANN, "--home", organiser_home)
    outcome = p2ptrain("peers", "approve", "no-body", "--home", organiser_home)
    assert outcome.err.startswith("error[PEER-UNKNOWN]")
    assert f"{peer_name(ANN)}  {ANN}" in outcome.err
    assert "the list may be incomplete: no node is running in" in outcome.err
    outcome = p2ptrain("peers", "revoke", peer_name(BOB), "--home", organiser_home)
    assert "fits none of the peers on the allowlist" in outcome.err


def test_denied_peer_is_written_down_and_can_still_be_approved(
    p2ptrain: Command, organiser_home: Path
) -> None:
    words = ("peers", "deny", peer_name(ANN), "--for", "12h", "--reason", "no GPU")
    with node_with(organiser_home, [asks(ANN)], DONE) as asked:
        told = p2ptrain(*words, "--home", organiser_home, "--json").json
    assert [each["command"] for each in asked] == ["join-requests", "reload-denials"]
    assert (told["peer"], told["reason"]) == (ANN, "no GPU")
    assert 0 <= told["until_unix"] - 12 * 3600 - time.time() + 60 <= 120
    assert denied(organiser_home) == [(ANN, "no GPU")]
    shown = p2ptrain("peers", "ls", "--home", organiser_home).out
    assert f"{peer_name(ANN)}  {ANN}  denied until " in shown
    assert ': "no GPU"' in shown
    p2ptrain("peers", "deny", ANN, "--reason", "full", "--home", organiser_home)
    p2ptrain("peers", "deny", BOB, "--home", organiser_home)
    assert denied(organiser_home) == [(ANN, "full"), (BOB, "")]
    outcome = p2ptrain("peers", "approve", ANN, "--home", organiser_home)
    assert "the decision takes effect when one starts" in outcome.err
    assert (listed(organiser_home), denied(organiser_home)) == ({ANN}, [(BOB, "")])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([ANN, "--for", "soon"], "is not a duration"),
        ([ANN, "--for", "0d"], "is not a duration"),
        ([ANN, "--for", "99999d"], "is not a duration"),
        ([ANN, "--reason", "x" * 201], "200 printable characters"),
        ([ANN, "--reason", "a\nb"], "200 printable characters"),
        ([BOB], "error[DENY-LISTED]"),
    ],
)
def test_invalid_denial_is_not_signed(
    words: list[str], said: str, p2ptrain: Command, organiser_home: Path
) -> None:
    p2ptrain("peers", "approve", BOB, "--home", organiser_home)
    outcome = p2ptrain("peers", "deny", *words, "--home", organiser_home)
    assert (outcome.code, denied(organiser_home)) == (2, [])
    assert said in outcome.err


def test_listed_peer_is_shown_and_revoked_by_name(p2ptrain: Command, organiser_home: Path) -> None:
    organiser = run_in(organiser_home).manifest.organiser
    p2ptrain("peers", "approve", ANN, "--home", organiser_home)
    plain = p2ptrain("peers", "ls", "--home", organiser_home)
    rows = {f"{peer_name(ANN)}  {ANN}", f"{peer_name(organiser)}  {organiser}  organiser"}
    assert set(plain.out.splitlines()) == rows
    assert p2ptrain("peers", "ls", "--home", organiser_home, "--json").json == {
        "schema": 1,
        "sequence": 2,
        "peers": sorted([ANN, organiser]),
        "readers": [],
        "revoked": [],
        "granted": [],
        "delegates": [],
        "denied": [],
    }
    assert p2ptrain("peers", "revoke", peer_name(ANN), "--home", organiser_home).code == 0
    assert listed(organiser_home) == set()


def test_long_list_of_candidates_is_shortened() -> None:
    many = list(map(somebody, range(20)))
    with pytest.raises(ConfigError) as caught:
        chosen_peer("12D3KooW", many, of="peers")
    assert len(caught.value.evidence) == 13
    assert caught.value.evidence[-1] == "and 8 more"
    assert chosen_peer(f"…{many[3][-6:]}", many, of="peers") == many[3]
    assert chosen_peer(f"/ip4/1.2.3.4/tcp/1/p2p/{CAI}", (), of="peers") == CAI


def test_durations_and_ages_are_short() -> None:
    texts = ["45s", "90min", "12h", "30d", "2w"]
    assert [*map(parse_duration, texts)] == [45, 5400, 43_200, 2_592_000, 1_209_600]
    assert [*map(age, [-1, 0, 119, 120, 7199, 7200, 172_800])] == [
        *("0 s", "0 s", "119 s", "2 min", "119 min", "2 h", "2 days")
    ]
