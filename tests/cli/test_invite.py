"""`p2ptrain invite` prints one string, and `p2ptrain join` starts a node with it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.cli.main import main
from p2ptrain.cli.outside import Outside
from p2ptrain.cli.qr_code import QUIET, qr_blocks
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.net.addresses import parse
from p2ptrain.net.invitation import Invitation, decode, encode
from p2ptrain.run import Run, Ticket, load_run
from tests.cli.conftest import Command, fake_node

ORGANISER, ANN = (Identity.from_seed(bytes([number]) * 32).peer for number in (1, 2))
RUN, OTHER = RunId("a7" * 32), RunId("b7" * 32)
SEED = f"/dns4/seed.example/tcp/4201/p2p/{ORGANISER}"
HOUSE = f"/ip4/198.51.100.7/tcp/4201/p2p/{ANN}"


def invitation(run: RunId = RUN, *addresses: str) -> str:
    return encode(Invitation.of(run, ORGANISER, map(parse, addresses)))


@pytest.fixture
def started() -> list[NodeConfig]:
    return []


@pytest.fixture
def joining(p2ptrain: Command, started: list[NodeConfig]) -> Command:
    """Return a function that runs a command. A node that the command starts is only noted in
    `started`, and ends at once with status 3."""

    def run_node(config: NodeConfig) -> int:
        started.append(config)
        return 3

    return partial(p2ptrain, around=Outside(run_node=run_node))


def test_join_is_node_with_the_run_and_the_addresses_of_the_invitation(
    joining: Command, started: list[NodeConfig], tmp_path: Path
) -> None:
    text = invitation(RUN, SEED, HOUSE)
    assert joining("join", text, "--home", tmp_path, "--yes", "--note", "Ada, Oslo").code == 3
    assert joining("node", "--bootstrap", text.upper(), "--bootstrap", "/x", "--home", tmp_path)
    joined = NodeConfig(
        tmp_path,
        bootstrap=(SEED, HOUSE),
        run=RUN,
        organiser=ORGANISER,
        searches_lan=True,
        port_mapping=True,
        page_port=4280,
    )
    assert started == [
        replace(joined, assume_yes=True, note="Ada, Oslo"),
        replace(joined, bootstrap=(SEED, HOUSE, "/x")),
    ]


@pytest.mark.parametrize(
    ("words", "code", "exit_code", "said"),
    [
        (["join", invitation()[:-9]], "INVITE-BROKEN", 2, "its end was cut off"),
        (["join", "hello"], "INVITE-BROKEN", 2, "does not begin with p2ptrain:"),
        (["join", SEED], "INVITE-BROKEN", 2, "node --bootstrap ADDRESS"),
        (["node", "--bootstrap", "p2ptrain:1"], "INVITE-BROKEN", 2, "copy the whole invitation"),
        (["join", invitation(), "--run", OTHER], "RUN-MISMATCH", 3, OTHER),
        (["join", invitation(), "--bootstrap", invitation(OTHER)], "RUN-MISMATCH", 3, OTHER),
        (["join", invitation(), "--note", "x" * 81], "CONFIG", 2, "80 printable characters"),
        (["join", invitation(), "--note", "a\x1bb"], "CONFIG", 2, "80 printable characters"),
    ],
)
def test_unusable_invitation_starts_no_node(
    words: list[str],
    code: str,
    exit_code: int,
    said: str,
    joining: Command,
    started: list[NodeConfig],
) -> None:
    outcome = joining(*words)
    assert (outcome.code, started) == (exit_code, [])
    assert outcome.err.startswith(f"error[{code}]")
    assert said in outcome.err


def the_run(home: Path) -> Run:
    run = load_run(Home(home).manifest)
    assert run is not None
    return run


def test_invitation_from_a_folder_has_the_given_addresses(
    p2ptrain: Command, organiser_home: Path
) -> None:
    run, me = the_run(organiser_home), load_or_create(Home(organiser_home).identity).peer
    words = ("invite", "--home", organiser_home, "--address", "/dns4/seed.example/tcp/4201")
    told = p2ptrain(*words, "--address", HOUSE, "--json").json
    addresses = [f"/dns4/seed.example/tcp/4201/p2p/{me}", HOUSE]
    assert (told["run"], told["organiser"], told["addresses"]) == (run.id, me, addresses)
    assert decode(told["invitation"]) == Invitation.of(run.id, me, map(parse, addresses))
    plain = p2ptrain(*words)
    assert decode(plain.out).run == run.id
    assert "it only has the addresses that you gave: no node is running" in plain.err
    assert f"peers pending --home {organiser_home}" in plain.err


def test_invitation_of_a_running_node_lists_its_addresses_after_the_given_ones(
    p2ptrain: Command, organiser_home: Path
) -> None:
    run = the_run(organiser_home)
    text = encode(Invitation.of(run.id, PeerId(ANN), [parse(HOUSE)]))
    reply = {"invitation": text, "warnings": ["it is private\x1b[2J"]}
    with fake_node(organiser_home, json.dumps(reply).encode() + b"\n") as requests:
        outcome = p2ptrain("invite", "--home", organiser_home, "--address", SEED)
    assert requests == [{"command": "invitation"}]
    made = decode(outcome.out)
    assert made.organiser == run.manifest.organiser, "a node cannot name another organiser"
    assert [str(each) for each in made.addresses] == [SEED, HOUSE]
    assert "warning: it is private·[2J" in outcome.err


def test_invitation_needs_a_node_or_an_address(p2ptrain: Command, organiser_home: Path) -> None:
    outcome = p2ptrain("invite", "--home", organiser_home)
    assert (outcome.code, outcome.out) == (75, "")
    assert outcome.err.startswith("error[NO-NODE]")
    assert "give --address" in outcome.err
    with fake_node(organiser_home, b'{"invitation": 7, "warnings": []}\n'):
        assert p2ptrain("invite", "--home", organiser_home).code == 5


def test_ticket_in_an_invitation_reaches_the_node(
    joining: Command, started: list[NodeConfig], organiser_home: Path, tmp_path: Path
) -> None:
    run = the_run(organiser_home)
    words = ("invite", "--home", organiser_home, "--address", HOUSE, "--uses", 3, "--expires", "2h")
    told = joining(*words, "--json").json
    assert told["uses"] == 3
    assert 0 <= told["expires_unix"] - 7200 - time.time() + 60 <= 120
    ticket = decode(told["invitation"]).ticket
    token = Ticket.from_bytes(ticket, run.id, run.manifest.organiser).signed.token
    assert (token.uses, token.expires_unix) == (3, told["expires_unix"])
    joining("join", told["invitation"], "--home", tmp_path / "new")
    assert (started[0].ticket, started[0].run) == (ticket, run.id)
    assert str(ticket) not in repr(started[0])
    plain = joining("invite", "--home", organiser_home, "--address", HOUSE, "--expires", "1d")
    assert "admits the first peer that uses it, until 20" in plain.err
    assert "keep this invitation secret" in plain.err
    assert decode(plain.out).ticket != ticket, "each ticket has a secret of its own"


def test_altered_ticket_starts_no_node(joining: Command, started: list[NodeConfig]) -> None:
    text = encode(Invitation.of(RUN, ORGANISER, [], b"a forged ticket"))
    outcome = joining("join", text)
    assert (outcome.code, started) == (2, [])
    assert outcome.err.startswith("error[INVITE-BROKEN] the ticket in this invitation is not valid")


def test_only_the_organiser_issues_tickets(joining: Command, organiser_home: Path) -> None:
    (organiser_home / "identity.key").unlink()
    outcome = joining("invite", "--home", organiser_home, "--address", HOUSE, "--uses", 1)
    assert (outcome.code, outcome.out) == (6, "")


def test_qr_code_is_square_and_has_its_three_corners(
    organiser_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = list(qr_blocks(invitation(RUN, SEED, HOUSE).upper()))
    rows = [[pixel for pixel in row if pixel] for row in _rows(lines)]
    side = len(rows[0])
    assert side in (len(rows), len(rows) - 1), "an odd number of rows gets one more white row"
    corner = ["#######", "#     #", "# ### #", "# ### #", "# ### #", "#     #", "#######"]
    end = side - QUIET - 7
    for top, left in ((QUIET, QUIET), (QUIET, end), (end, QUIET)):
        assert ["".join(row[left : left + 7]) for row in rows[top : top + 7]] == corner
    words = ["invite", "--address", SEED, "--home", str(organiser_home)]
    assert main([*words, "--qr"]) == 0
    assert "\033[97;40m" in capsys.readouterr().err
    assert main(words) == 0
    assert "\033" not in capsys.readouterr().err, "the output is not a terminal"


def _rows(lines: list[str]) -> list[str]:
    """Return the rows of modules that `lines` show, with "#" for a dark module."""
    halves = {"█": "  ", "▀": " #", "▄": "# ", " ": "##"}
    return ["".join(halves[each][half] for each in line) for line in lines for half in (0, 1)]
