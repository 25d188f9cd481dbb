"""The handshake between a node and a rank that the node did not start. Both prove that they know
the secret, and neither sends the secret."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.encoding import pack
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError
from p2ptrain.ipc import admission, slices
from p2ptrain.ipc.admission import Claim, Purpose, challenge, prove

SECRET, OTHER = b"s" * 32, b"o" * 32
CLAIM = Claim(1, 2, Purpose.SLICES)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the node's socket and the rank's."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def both(
    pair: tuple[socket.socket, socket.socket], node_secret: bytes, rank_secret: bytes
) -> tuple[object, object]:
    """Run the handshake with these secrets. Return what the node and the rank conclude."""
    told: list[object] = [None]

    def node() -> None:
        try:
            told[0] = challenge(pair[0], node_secret)
        except (RemoteProtocolError, OSError) as exc:
            told[0] = exc
        pair[0].shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=node)
    thread.start()
    try:
        prove(pair[1], rank_secret, CLAIM)
        mine: object = "proved"
    except (RemoteProtocolError, OSError) as exc:
        mine = exc
    thread.join()
    return told[0], mine


def test_rank_with_the_secret_is_accepted(pair: tuple[socket.socket, socket.socket]) -> None:
    assert both(pair, SECRET, SECRET) == (CLAIM, "proved")


def test_rank_without_the_secret_is_disconnected(pair: tuple[socket.socket, socket.socket]) -> None:
    node, rank = both(pair, SECRET, OTHER)
    assert isinstance(node, RemoteProtocolError)
    assert isinstance(rank, ConnectionError)


def test_secret_is_never_sent_and_a_proof_is_valid_only_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """An eavesdropper has recorded a valid exchange of node and rank, and replays it."""
    node, middle = socket.socketpair()
    heard: list[bytes] = []
    thread = threading.Thread(target=lambda: challenge(node, SECRET))
    thread.start()
    rank = threading.Thread(target=lambda: prove(pair[1], SECRET, CLAIM))
    rank.start()
    for source, to in ((middle, pair[0]), (pair[0], middle), (middle, pair[0])):
        heard.append(source.recv(4096))
        to.sendall(heard[-1])
    thread.join()
    rank.join()
    assert all(SECRET not in each for each in heard)
    again, fresh = socket.socketpair()
    fresh.sendall(heard[1])
    with pytest.raises(RemoteProtocolError, match="does not know"):
        challenge(again, SECRET)
    for each in (node, middle, again, fresh):
        each.close()


def test_false_node_is_detected(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"p2prank\x01" + bytes(32) + bytes(32))
    with pytest.raises(RemoteProtocolError, match="a different secret for its ranks"):
        prove(pair[1], SECRET, CLAIM)
    pair[0].recv(4096)
    pair[0].sendall(b"SSH-2.0-" + bytes(32))
    with pytest.raises(RemoteProtocolError, match="not a node that accepts ranks"):
        prove(pair[1], SECRET, CLAIM)


def test_rank_refuses_its_own_proof_sent_back(pair: tuple[socket.socket, socket.socket]) -> None:
    """An impostor without the secret listens in place of the node, and sends the rank's own proof
    back."""
    impostor, rank = pair
    impostor.settimeout(admission.GREETING_LIMIT_S)

    def reflect() -> None:
        impostor.sendall(b"p2prank\x01" + bytes(32))
        answer = impostor.recv(4096)
        impostor.sendall(answer[-32:])

    thread = threading.Thread(target=reflect)
    thread.start()
    with pytest.raises(RemoteProtocolError, match="a different secret for its ranks"):
        prove(rank, SECRET, CLAIM)
    thread.join()


def test_handshake_with_a_silent_side_times_out(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        challenge(pair[0], SECRET, limit_s=0.05)
    with pytest.raises(TimeoutError):
        prove(pair[1], SECRET, CLAIM, limit_s=0.0)


@pytest.mark.parametrize(
    "impossible",
    [(2, 2, Purpose.SLICES), (0, 0, Purpose.SLICES), (1, 2, Purpose.FRAMES), (0, 2**16, 1)],
)
def test_invalid_claim_cannot_be_made(impossible: tuple[int, int, Purpose]) -> None:
    with pytest.raises(ValueError, match="rank"):
        Claim(*impossible)


def test_secret_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "ranks.secret"
    secret = admission.load_or_create(path)
    assert (len(secret), admission.load_or_create(path)) == (32, secret)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("too short\n")
    assert trouble(path)[0] == "RANKS-SECRET"
    path.unlink()
    assert "scp -p" in trouble(path)[1]


def trouble(path: Path) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        admission.load(path)
    assert isinstance(caught.value, P2PTrainError)
    return caught.value.code, caught.value.do


MESSAGES: list[slices.Message] = [
    slices.Welcome(7, "{}"),
    slices.Refused("no"),
    slices.ReadTheta(((0, 4), (8, 9))),
    slices.WriteLocal(((3, 4),)),
    slices.ReadBlock("/a"),
    slices.Ending(71),
]


def test_messages_arrive_unchanged(pair: tuple[socket.socket, socket.socket]) -> None:
    for each in MESSAGES:
        slices.send(pair[1], each)
    assert [slices.receive(pair[0]) for _ in MESSAGES] == MESSAGES
    pair[1].shutdown(socket.SHUT_RDWR)
    assert slices.receive(pair[0]) is None


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {"kind": "read-theta"},
        {"kind": "read-theta", "ranges": []},
        {"kind": "read-theta", "ranges": [[4, 4]]},
        {"kind": "read-theta", "ranges": [[-1, 4]]},
        {"kind": "read-theta", "ranges": [[1, True]]},
        {"kind": "read-theta", "ranges": [[1, 2, 3]]},
        {"kind": "read-theta", "ranges": [7]},
        {"kind": "write-local", "ranges": [[0, 1]] * (slices.RANGES_MAX + 1)},
        {"kind": "read-block", "path": "x" * 5000},
        {"kind": "ending", "status": 256},
        {"kind": "welcome", "generation": -1, "config": ""},
        {"kind": "refused", "reason": 1},
        {"kind": "unheard-of"},
        {"kind": 4},
    ],
)
def test_malformed_message_is_refused(plain: object) -> None:
    with pytest.raises(RemoteProtocolError):
        slices.decode(pack(plain))


def test_message_longer_than_any_valid_one_is_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[1].sendall(slices.LENGTH.pack(slices.MESSAGE_BYTES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        slices.receive(pair[0])
