"""A newcomer checks every document: forged, truncated, foreign and old documents are refused with a
clear error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.encoding import pack, unpack
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.observe.journal import read_journal
from p2ptrain.peers.hello_messages import HelloReply
from p2ptrain.run import Allowlist, Run, Signed, SignedAllowlist
from p2ptrain.run.versions import VERSIONS
from tests.faults.answering import Peer, at, dead_port, peer
from tests.faults.conftest import MEMBER, Here
from tests.faults.processes import ON_LOOPBACK, NodeProcess, wait_until

LIAR = Identity.from_seed(b"liar".ljust(32))
ALLOWLIST_KIND = "allowlist"


def reply(manifest: bytes, allowlist: bytes = b"", *, admitted: bool = False) -> HelloReply:
    return HelloReply(manifest, allowlist, b"", admitted, {})


def tampered(document: bytes, name: str, value: object) -> bytes:
    """Return the signed document with one field of its envelope replaced."""
    envelope = unpack(document, bytes_max=1 << 20)
    assert isinstance(envelope, dict)
    return pack(envelope | {name: value})


def altered(run: Run) -> bytes:
    """Return the same run with a changed outer learning rate and the old signature."""
    outer = replace(run.manifest.outer, lr=99.0)
    return tampered(run.to_bytes(), "payload", replace(run.manifest, outer=outer).to_payload())


def signed_by_another(run: Run) -> bytes:
    return Signed.by(LIAR, "manifest", run.signed.payload).to_bytes()


def said_to_be_signed_by_another(run: Run) -> bytes:
    return tampered(run.to_bytes(), "signer", LIAR.peer)


FORGERIES: list[tuple[str, Callable[[Run], bytes], str]] = [
    ("altered", altered, "SIGNATURE"),
    ("foreign", signed_by_another, "SIGNATURE"),
    ("renamed", said_to_be_signed_by_another, "SIGNATURE"),
    ("cut", lambda run: run.to_bytes()[:-40], "PEER-PROTOCOL"),
    ("empty", lambda run: b"", "PEER-PROTOCOL"),
    ("noise", lambda run: bytes(range(256)) * 8, "PEER-PROTOCOL"),
]


@pytest.mark.parametrize(
    ("forge", "code"), [row[1:] for row in FORGERIES], ids=[row[0] for row in FORGERIES]
)
def test_forged_manifest_is_refused_and_not_kept(
    forge: Callable[[Run], bytes], code: str, run: Run, node_here: Here, tmp_path: Path
) -> None:
    with peer(LIAR, lambda: reply(forge(run))) as liar:
        screen = node_here("--bootstrap", liar.address)
    screen.is_error(code, 5)
    assert LIAR.peer in screen.evidence
    assert "organiser" in screen.do
    assert not (tmp_path / "home" / "run" / "manifest.signed").exists()


def test_liar_does_not_hide_an_honest_peer(run: Run, node_here: Here, seed: NodeProcess) -> None:
    with peer(LIAR, lambda: reply(altered(run))) as liar:
        screen = node_here("--bootstrap", liar.address, "--bootstrap", seed.address(), "--no-wait")
    screen.is_error("AUTH-PENDING", 6)


def test_run_other_than_the_requested_one_is_refused(
    run: Run, node_here: Here, seed: NodeProcess
) -> None:
    wanted = RunId("ab" * 32)
    screen = node_here("--bootstrap", seed.address(), "--run", wanted)
    screen.is_error("RUN-MISMATCH", 3)
    assert wanted in screen.evidence
    assert run.id in screen.evidence
    assert "address" in screen.do


def test_server_of_another_run_does_not_hide_an_honest_peer(
    run: Run, node_here: Here, seed: NodeProcess
) -> None:
    others = replace(run.manifest, organiser=LIAR.peer).to_payload()
    other = Signed.by(LIAR, "manifest", others).to_bytes()
    with peer(LIAR, lambda: reply(other)) as liar:
        ways = [word for each in (liar.address, seed.address()) for word in ("--bootstrap", each)]
        screen = node_here(*ways, "--run", run.id, "--no-wait")
    screen.is_error("AUTH-PENDING", 6)


def test_home_of_another_run_is_refused(here: Here, organiser: Path) -> None:
    screen = here("node", "--seed", "--home", organiser, "--run", "ab" * 32)
    screen.is_error("RUN-MISMATCH", 3)
    assert "--home" in screen.do


@pytest.mark.parametrize("words", [["node", "--seed", "--yes"], ["ckpt", "fetch"]], ids=" ".join)
def test_home_refuses_an_address_of_a_different_run(
    words: list[str], here: Here, organiser: Path, run: Run
) -> None:
    others = replace(run.manifest, organiser=LIAR.peer).to_payload()
    other = Signed.by(LIAR, "manifest", others).to_bytes()
    with peer(LIAR, lambda: reply(other)) as liar:
        screen = here(*words, "--home", organiser, "--bootstrap", liar.address, *ON_LOOPBACK)
    screen.is_error("RUN-MISMATCH", 3)
    assert run.id in screen.evidence
    assert LIAR.peer in screen.evidence
    assert "--home" in screen.do


def test_run_of_another_version_is_refused(run: Run, node_here: Here) -> None:
    payload = unpack(run.signed.payload, bytes_max=1 << 20)
    assert isinstance(payload, dict)
    newer = Signed.by(LIAR, "manifest", pack(payload | {"version": VERSIONS[-1] + 1})).to_bytes()
    with peer(LIAR, lambda: reply(newer)) as newcomer:
        screen = node_here("--bootstrap", newcomer.address)
    screen.is_error("RUN-VERSION", 7)
    assert "upgrade" in screen.do


def test_peer_missing_from_the_allowlist_learns_what_to_do(
    run: Run, node_here: Here, here: Here, seed: NodeProcess, tmp_path: Path
) -> None:
    screen = node_here("--bootstrap", seed.address(), "--no-wait")
    me = here("id", "--home", tmp_path / "home").out.strip()
    screen.is_error("AUTH-PENDING", 6)
    assert me in screen.evidence
    assert run.manifest.organiser in screen.evidence
    assert f"p2ptrain peers approve {me}" in screen.do
    assert seed.saw("join-request", peer=me)
    listed = here("allow", "list", "--home", seed.home)
    assert f"asks to join: p2ptrain peers approve {me}" in listed.err
    assert me not in listed.out


def listing(run: Run, *peers: PeerId, sequence: int = 9) -> Allowlist:
    return Allowlist.of(run.id, sequence, peers)


def unsigned(run: Run, me: PeerId) -> bytes:
    organisers = Signed.by(LIAR, ALLOWLIST_KIND, pack_list(listing(run, me))).to_bytes()
    return tampered(organisers, "signer", run.manifest.organiser)


def foreign(run: Run, me: PeerId) -> bytes:
    return SignedAllowlist.publish(LIAR, listing(run, me)).to_bytes()


def pack_list(allowlist: Allowlist) -> bytes:
    return SignedAllowlist.publish(LIAR, allowlist).signed.payload


LISTS: list[tuple[str, Callable[[Run, PeerId], bytes], str]] = [
    ("unsigned", unsigned, "signature"),
    ("foreign", foreign, "but the organiser of run"),
    ("noise", lambda run, me: b"\x81", ""),
]


@pytest.mark.parametrize(
    ("forge", "reason"), [row[1:] for row in LISTS], ids=[row[0] for row in LISTS]
)
def test_forged_allowlist_in_a_hello_is_ignored(
    forge: Callable[[Run, PeerId], bytes],
    reason: str,
    run: Run,
    node_here: Here,
    here: Here,
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    me = PeerId(here("id", "--home", home).out.strip())
    with peer(LIAR, lambda: reply(run.to_bytes(), forge(run, me), admitted=True)) as liar:
        screen = node_here("--bootstrap", liar.address, "--no-wait")
    screen.is_error("AUTH-PENDING", 6)
    assert not (home / "run" / "allowlist.signed").exists()
    (said,) = [
        event for event in read_journal(home / "journal.jsonl") if event["event"] == "bad-hello"
    ]
    assert said["peer"] == LIAR.peer
    assert reason in str(said["reason"])


@pytest.fixture
def member(run: Run, allowlist: SignedAllowlist, seed: NodeProcess) -> Iterator[Peer]:
    """Yield a peer on the allowlist that is connected to the seed and can publish anything."""
    topic = f"/p2ptrain/1/{run.id}/allowlist"
    with peer(MEMBER, lambda: reply(run.to_bytes(), allowlist.to_bytes())) as other:
        other.follow(topic)
        other.connect(seed.address())
        yield other


def test_only_newer_allowlists_of_the_organiser_are_accepted_from_gossip(
    member: Peer, published: Path, run: Run, allowlist: SignedAllowlist, seed: NodeProcess
) -> None:
    organiser = load_or_create(published / "identity.key")

    def signed(sequence: int, *added: PeerId) -> bytes:
        peers = (*allowlist.allowlist.peers, *added)
        return SignedAllowlist.publish(
            organiser, listing(run, *peers, sequence=sequence)
        ).to_bytes()

    def until_list(sequence: int, *payloads: bytes) -> None:
        def is_told() -> object:
            for payload in payloads:
                member.publish(f"/p2ptrain/1/{run.id}/allowlist", payload)
            list(seed.new_events())
            return seed.find("allowlist", sequence=sequence)

        wait_until(f"list {sequence}", is_told)

    # Of two lists with one number, the list with the smaller digest wins, so it comes first here.
    winner, loser = sorted(
        (signed(2), signed(2, LIAR.peer)),
        key=lambda data: SignedAllowlist.from_bytes(data, run).signed.digest,
    )
    until_list(2, *(forge(run, LIAR.peer) for _, forge, _ in LISTS), winner)
    until_list(3, signed(1, LIAR.peer), loser, signed(3))
    assert seed.saw("bad-gossip", peer=MEMBER.peer)
    taken = [event["sequence"] for event in seed.events if event["event"] == "allowlist"]
    assert taken == [2, 3]
    assert (seed.home / "run" / "allowlist.signed").read_bytes() == signed(3)


def test_run_that_the_user_declined_is_not_saved(run: Run, here: Here, tmp_path: Path) -> None:
    with peer(LIAR, lambda: reply(run.to_bytes())) as seed:
        words = ("--bootstrap", seed.address, *ON_LOOPBACK)
        screen = here("node", "--home", tmp_path / "home", *words)
    screen.is_error("CONSENT", 2)
    assert "--yes" in screen.do
    assert f"({run.id})" in screen.err
    assert not (tmp_path / "home" / "run" / "manifest.signed").exists()


def test_each_address_that_gave_no_valid_run_is_reported(run: Run, node_here: Here) -> None:
    with peer(LIAR, lambda: reply(altered(run))) as liar:
        screen = node_here("--bootstrap", liar.address, "--bootstrap", at(dead_port()))
    assert screen.status == 5
    assert len(screen.lines("tried", "seen")) >= 2
