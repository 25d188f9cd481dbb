"""A token admits a peer only with the organiser's signature and a proof that names the peer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2ptrain.archive.token_uses import NO_USES, load_uses, refusal, save_uses, with_use
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.net.invitation import TICKET_BYTES_MAX
from p2ptrain.node.joining.admit_by_token import token_in
from p2ptrain.run import JoinRequest, Run, Signed, SignedToken, Ticket, Token
from p2ptrain.run.reading import plain
from p2ptrain.run.token import KIND

SEED = b"t" * 32
END = 1_790_086_400
OTHER = Identity.from_seed(b"2" * 32)
THIRD = Identity.from_seed(b"3" * 32)


@pytest.fixture
def ticket(run: Run, organiser: Identity) -> Ticket:
    return Ticket.issue(organiser, run.id, SEED, uses=2, expires_unix=END)


def request(run: Run, who: Identity, ticket: Ticket, proof: bytes = b"") -> JoinRequest:
    token = ticket.signed.signed.to_bytes()
    proof = proof or ticket.proof_for(who.peer)
    return JoinRequest(run.id, who.peer, 1, "\U0001f600" * 80, token, proof)


def test_ticket_survives_encoding(run: Run, organiser: Identity, ticket: Ticket) -> None:
    data = ticket.to_bytes()
    assert Ticket.from_bytes(data, run.id, run.manifest.organiser) == ticket
    assert len(data) < TICKET_BYTES_MAX
    signed = ticket.signed
    assert SignedToken.from_bytes(signed.signed.to_bytes(), run) == signed
    assert SEED.hex() not in repr(ticket)
    assert signed.token.end == "2026-09-22 14:13 UTC"


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_altered_ticket_is_refused(
    place: int, run: Run, organiser: Identity, ticket: Ticket
) -> None:
    parts = unpack(ticket.to_bytes(), bytes_max=256)
    assert isinstance(parts, list)
    parts[place] = [bytes(32), 3, END + 1, "reader", bytes(64)][place]
    with pytest.raises(RemoteProtocolError):
        Ticket.from_bytes(pack(parts), run.id, run.manifest.organiser)


def test_ticket_of_another_run_or_organiser_is_refused(
    run: Run, organiser: Identity, stranger: Identity, ticket: Ticket
) -> None:
    for wrong in ((RunId("b" * 64), run.manifest.organiser), (run.id, stranger.peer)):
        with pytest.raises(RemoteProtocolError):
            Ticket.from_bytes(ticket.to_bytes(), *wrong)


def test_request_with_a_token_survives_encoding_and_names_its_token(
    run: Run, stranger: Identity, ticket: Ticket
) -> None:
    made = request(run, stranger, ticket)
    data = made.to_bytes(stranger)
    assert JoinRequest.from_bytes(data) == made
    assert token_in(data, run, run.manifest.organiser) == ticket.signed.token


def test_request_without_a_token_is_encoded_as_in_earlier_versions(
    run: Run, stranger: Identity
) -> None:
    made = JoinRequest(run.id, stranger.peer, 1, "a note")
    early = {"run": run.id, "peer": stranger.peer, "created_unix": 1, "note": "a note"}
    data = made.to_bytes(stranger)
    assert data == Signed.by(stranger, "join-request", pack(early)).to_bytes()
    assert JoinRequest.from_bytes(data) == made
    assert token_in(data, run, run.manifest.organiser) is None
    empty = Signed.by(stranger, "join-request", pack({**early, "token": b"", "proof": b""}))
    with pytest.raises(RemoteProtocolError, match="empty token"):
        JoinRequest.from_bytes(empty.to_bytes())


def test_proof_of_one_peer_does_not_admit_another(
    run: Run, stranger: Identity, ticket: Ticket
) -> None:
    stolen = request(run, OTHER, ticket, proof=ticket.proof_for(stranger.peer))
    assert token_in(stolen.to_bytes(OTHER), run, run.manifest.organiser) is None


def test_token_of_a_stranger_or_another_run_does_not_admit(
    run: Run, organiser: Identity, stranger: Identity
) -> None:
    for who, of in ((stranger, run.id), (organiser, RunId("b" * 64))):
        forged = Ticket.issue(who, of, SEED, uses=2, expires_unix=END)
        assert token_in(request(run, stranger, forged).to_bytes(stranger), run, who.peer) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "x"},
        {"key": "nobody"},
        {"uses": 0},
        {"uses": 1001},
        {"expires_unix": 0},
        {"expires_unix": 2**41},
        {"role": "boss"},
        {"x": 1},
    ],
)
def test_malformed_token_is_refused(
    changes: dict[str, object], run: Run, organiser: Identity, ticket: Ticket
) -> None:
    wrong = Signed.by(organiser, KIND, pack(plain(ticket.signed.token) | changes))
    with pytest.raises(RemoteProtocolError):
        SignedToken.from_bytes(wrong.to_bytes(), run)


def test_token_for_another_run_is_a_mismatch(run: Run, organiser: Identity) -> None:
    other = Ticket.issue(organiser, RunId("b" * 64), SEED, uses=1, expires_unix=END)
    with pytest.raises(RunMismatch):
        SignedToken.from_bytes(other.signed.signed.to_bytes(), run)


def test_token_admits_each_peer_once_and_only_as_many_as_it_allows(ticket: Ticket) -> None:
    token: Token = ticket.signed.token
    one, two, three = OTHER.peer, THIRD.peer, Identity.from_seed(b"4" * 32).peer
    assert refusal(token, NO_USES, one, 1, END - 1) == ""
    assert "expired" in refusal(token, NO_USES, one, 1, END)
    used = with_use(with_use(NO_USES, token, [one], 2), token, [two], 3)
    assert "2 times" in refusal(token, used, three, 3, 0)
    assert "removed from the list" in refusal(token, used, one, 4, 0)
    assert refusal(token, used, two, 2, 0) == "", "list 3 was never signed because of a crash"
    other = replace(token, key=three)
    assert refusal(other, used, three, 3, 0) == ""


def test_uses_survive_storage_and_a_damaged_file_is_an_error(
    ticket: Ticket, tmp_path: Path
) -> None:
    path = tmp_path / "token-uses"
    assert load_uses(path) == NO_USES
    used = with_use(NO_USES, ticket.signed.token, [OTHER.peer, THIRD.peer], 7)
    save_uses(path, used)
    assert load_uses(path) == used
    for content in (b"noise", pack([1]), pack({"a": 1}), pack({"a": {"b": "c"}})):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="how often invitations were used") as caught:
            load_uses(path)
        assert caught.value.code == "RUN-FILE"
