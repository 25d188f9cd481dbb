"""Messages between two members that cannot connect to each other, passed on by a third member.

    sender ── message ──► forwarder ── the same bytes ──► receiver
    sender ◄── reply ─── forwarder ◄── the same bytes ── receiver

The forwarder is not trusted. It can drop or delay a message, and read it. It cannot change a
message, because the author signs all of it. It cannot repeat one either: a message names the
incarnations (the starts) of both ends and has a serial number, and the receiver handles each serial
number once. This module does not know which messages are worth passing on, or to whom.

A forwarder can add one statement of its own: the address at which it sees the sender. The signature
does not cover this statement, and the sender cannot make it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.peers.incarnations import INCARNATION_MAX

PAYLOAD_BYTES_MAX = 64 << 10
"""Maximum size of a payload in bytes. Votes and proposals are far smaller. Pages of ledger entries
may be larger; those are requested from another peer."""

MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX + 1024
"""Maximum size of a message in bytes. Everything except the payload takes about 350 bytes."""

PROTOCOL_CHARACTERS_MAX = 64
SERIAL_MAX = 1 << 40
WINDOW = 256
"""Number of serial numbers behind the newest one that a receiver still accepts, since messages may
arrive in another order. At most eight messages a second are passed on, so this is half a minute."""

SENDERS_MAX = 4096

_DOMAIN = b"p2ptrain forwarded 1\n"


@dataclass(frozen=True, slots=True)
class ForwardedMessage:
    """A request of `sender`, or the reply to one. `serial` counts the requests of `sender` since
    its start; a reply has the serial number of its request. `protocol` names the handler.

    Raises:
        RemoteProtocolError: a field has an invalid value.
    """

    run: RunId
    sender: PeerId
    receiver: PeerId
    sender_incarnation: int
    receiver_incarnation: int
    serial: int
    protocol: str
    is_reply: bool
    payload: bytes
    signature: bytes = b""
    seen_at: str = ""
    """The IP address at which the forwarder sees the sender; "" if the forwarder does not say it.
    The forwarder writes this field."""

    def __post_init__(self) -> None:
        if not is_digest(self.run) or not is_peer_id(self.sender) or not is_peer_id(self.receiver):
            raise RemoteProtocolError("a forwarded message names an invalid run or peer")
        for each in (self.sender_incarnation, self.receiver_incarnation):
            count(each, INCARNATION_MAX, "a forwarded message")
        count(self.serial, SERIAL_MAX, "a forwarded message")
        if len(self.protocol) > PROTOCOL_CHARACTERS_MAX or not self.protocol.isprintable():
            raise RemoteProtocolError("a forwarded message names an invalid protocol")
        if len(self.payload) > PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"a forwarded payload has {len(self.payload)} bytes")
        if self.seen_at:
            _check_host(self.seen_at)

    def signed(self, sign: Sign) -> ForwardedMessage:
        return replace(self, signature=sign(self._signed_bytes()))

    def is_genuine(self, verify: Verify) -> bool:
        """Return whether `sender` signed this message."""
        return verify(self.sender, self._signed_bytes(), self.signature)

    def reply(self, payload: bytes) -> ForwardedMessage:
        """Return the receiver's reply, which it still has to sign."""
        return replace(
            self,
            sender=self.receiver,
            receiver=self.sender,
            sender_incarnation=self.receiver_incarnation,
            receiver_incarnation=self.sender_incarnation,
            is_reply=True,
            payload=payload,
            signature=b"",
            seen_at="",
        )

    def answers(self, request: ForwardedMessage) -> bool:
        """Return whether this is the reply to `request`, if the signature is genuine."""
        return replace(self, signature=b"", seen_at="") == request.reply(self.payload)

    def _signed_bytes(self) -> bytes:
        return _DOMAIN + pack(self._wire())

    def _wire(self) -> dict[str, object]:
        return {
            "run": self.run,
            "sender": self.sender,
            "receiver": self.receiver,
            "incarnations": [self.sender_incarnation, self.receiver_incarnation],
            "serial": self.serial,
            "protocol": self.protocol,
            "reply": self.is_reply,
            "payload": self.payload,
        }

    def encode(self) -> bytes:
        stated = {"seen_at": self.seen_at} if self.seen_at else {}
        return pack(self._wire() | {"signature": self.signature} | stated)


def decode(data: bytes) -> ForwardedMessage:
    """Decode a message. The signature is not checked. Raises RemoteProtocolError if the message is
    malformed."""
    value = unpack(data, bytes_max=MESSAGE_BYTES_MAX)
    stated = {"seen_at": str} if isinstance(value, dict) and "seen_at" in value else {}
    wire = fields(
        value,
        **stated,
        **dict.fromkeys(("run", "sender", "receiver", "protocol"), str),
        **dict.fromkeys(("payload", "signature"), bytes),
        incarnations=list,
        serial=int,
        reply=bool,
    )
    numbers = wire["incarnations"]
    if not isinstance(numbers, list) or len(numbers) != 2 or {type(it) for it in numbers} != {int}:
        raise RemoteProtocolError("a forwarded message must have two incarnations")
    return ForwardedMessage(
        RunId(str(wire["run"])),
        PeerId(str(wire["sender"])),
        PeerId(str(wire["receiver"])),
        numbers[0],
        numbers[1],
        count(wire["serial"], SERIAL_MAX, "a forwarded message"),
        str(wire["protocol"]),
        wire["reply"] is True,
        bytes(wire["payload"]),  # type: ignore[call-overload]  # `fields` has checked the type
        bytes(wire["signature"]),  # type: ignore[call-overload]
        str(wire.get("seen_at", "")),
    )


def _check_host(host: str) -> None:
    """Raise RemoteProtocolError if `host` is not an IP address in the form in which Python writes
    it."""
    try:
        usual = str(ip_address(host))
    except ValueError:
        usual = ""
    if host != usual or "%" in host:
        raise RemoteProtocolError("a forwarded message has an invalid address of its sender")


@dataclass(slots=True)
class _Received:
    """The serial numbers received from one incarnation of a peer. Bit n of `bits` stands for the
    serial number `newest` − n."""

    incarnation: int
    newest: int = -1
    bits: int = 0


@dataclass(slots=True)
class HandledSerials:
    """The requests that were handled, so that none is handled twice."""

    _by_sender: dict[PeerId, _Received] = field(default_factory=dict)

    def is_new(self, sender: PeerId, incarnation: int, serial: int) -> bool:
        """Record a genuine request, and return whether it was not recorded before. Requests of an
        earlier incarnation, or far behind the newest one, count as recorded."""
        known = self._by_sender.pop(sender, None)
        if known is None or known.incarnation < incarnation:
            known = _Received(incarnation)
        self._by_sender[sender] = known  # The sender that was heard most recently comes last.
        if len(self._by_sender) > SENDERS_MAX:
            del self._by_sender[next(iter(self._by_sender))]
        if incarnation < known.incarnation or serial <= known.newest - WINDOW:
            return False
        if serial > known.newest:
            shift = min(serial - known.newest, WINDOW)
            known.bits = (known.bits << shift) & ((1 << WINDOW) - 1)
            known.newest = serial
        bit = 1 << (known.newest - serial)
        is_new = not known.bits & bit
        known.bits |= bit
        return is_new
