"""The messages with which two neighbours begin to use a kept connection again.

    opener ──► other    hello: purpose "ring-again", version, run, step, attempt and stream
    opener ◄── other    accepted, or refused with a reason
    opener ──► other    confirmed

The opener is the same as in `edge`. The other end does not know whether its answer came in time. So
it uses the connection only after the confirmation. Without a confirmation the opener connects in
another way, and the hello of that connection says so.

A kept connection carries nothing between two reduces. A frame of the ring that arrives there is not
a valid hello: its first bytes announce a message that is too long. Each frame of the ring carries
the step, the attempt and the tag of its reduce (`ring/wire`), so a frame of another reduce that
arrives after the confirmation is refused too.

*Whose word is it?* TLS has proved who is at the other end. A neighbour that names a wrong attempt
gains what it gains by dialling: a parked connection, within the inbox's limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2ptrain.dataplane import PeerSocket, RingKey
from p2ptrain.dataplane.tls import HELLO_BYTES_MAX, answer_hello, introduce, receive_hello
from p2ptrain.encoding import fields, unpack
from p2ptrain.errors import PeerUnreachable, RemoteProtocolError
from p2ptrain.ids import PeerId

PURPOSE = "ring-again"
VERSION = 1

BEGUN_S = 2.0
"""Seconds for the rest of a hello whose first byte has arrived."""


def to_hello(key: RingKey) -> dict[str, object]:
    return key.to_hello(PURPOSE) | {"version": VERSION}


def from_hello(hello: Mapping[str, object], peer: PeerId) -> RingKey:
    """Return the key in a hello of `peer`. Raises RemoteProtocolError: this node does not know its
    version, or it is malformed."""
    rest = dict(hello)
    version = rest.pop("version", None)
    if rest.get("purpose") != PURPOSE or version != VERSION:
        raise RemoteProtocolError(
            f"it does not use the kept connection by version {VERSION}", peer=peer
        )
    return RingKey.from_hello(rest, peer)


def offer(connection: PeerSocket, key: RingKey, deadline_s: float) -> None:
    """Ask the neighbour to use a kept connection for `key`. This blocks, so call it in a thread.
    Afterwards both ends use the connection.

    Raises:
        PeerError, RemoteProtocolError: the neighbour does not answer in time, or refuses. Then
            close the connection.
    """
    connection.set_deadline(deadline_s)
    introduce(connection, to_hello(key))
    answer_hello(connection)


def accept(
    connection: PeerSocket,
    refusal: Callable[[RingKey], str],
    confirmed_within_s: float,
    begun_s: float = BEGUN_S,
) -> RingKey:
    """Answer the neighbour's hello on a kept connection, which has `begun_s` to arrive. Return its
    key once the neighbour has confirmed. `refusal` returns why a key is refused; "" if it is not.
    This blocks, so call it in a thread.

    Raises:
        PeerError, RemoteProtocolError: the hello is refused, malformed or not confirmed. Then close
            the connection.
    """
    connection.set_deadline(begun_s)
    key = from_hello(receive_hello(connection), connection.peer)
    why = refusal(key)
    answer_hello(connection, why)
    if why:
        raise PeerUnreachable(f"its hello was refused: {why}", peer=connection.peer)
    connection.set_deadline(confirmed_within_s)
    confirmed = connection.receive_frame(HELLO_BYTES_MAX)
    given = fields(unpack(confirmed, bytes_max=HELLO_BYTES_MAX), accepted=bool, reason=str)
    if not given["accepted"]:
        raise PeerUnreachable("it uses another connection", peer=connection.peer)
    return key
