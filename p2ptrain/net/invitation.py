"""The string with which volunteers are invited to a run: p2ptrain:1…

An invitation names the run, its organiser, and up to eight addresses of peers. It may contain a
ticket, with which the organiser's node admits the volunteer (`run/token`). It is one word, so a
user can paste it, or scan it as a QR code (in upper case, which makes the code smaller).

    p2ptrain:  1  LL  BODY  CCCCCC      L: length, C: checksum, both in base32 like the body

The alphabet lacks the letters i, l, o and u, which look like other characters. The checksum is that
of Bitcoin's addresses (BIP 350): it detects every typo in one character, and all but one in a
billion of other typos. Every invitation has exactly one encoding.

An invitation is not signed, because anybody may invite anybody. A liar gains nothing beyond sending
its victim to another run, as it could with any address. The node checks that peers send exactly the
run that the invitation names, and shows the user who signed the run.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import ConfigError, RemoteProtocolError, VersionMismatch
from p2ptrain.identity import is_peer_id, peer_of_key, public_key_of
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.net.addresses import Address, parse

PREFIX = "p2ptrain:"
VERSION = 1

ADDRESSES_MAX = 8
"""Maximum number of addresses. One that leads to a member is enough; eight survive years of
change, and still fit into a QR code that a terminal can show."""

CHARACTERS_MAX = 1000
"""Maximum characters after the prefix. The checksum detects every single typo in up to 1,023."""

TICKET_BYTES_MAX = 256

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")
_CHECKSUM = 6
_FRAME = 3 + _CHECKSUM  # version, two characters of length, checksum
_GENERATOR = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CONSTANT = 0x2BC830A3


@dataclass(frozen=True, slots=True)
class Invitation:
    """The content of an invitation. Each address names the peer that answers there. Create one with
    `of`, which picks and normalises the addresses."""

    run: RunId
    organiser: PeerId
    addresses: tuple[Address, ...]
    ticket: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not is_peer_id(self.organiser):
            raise ValueError("the organiser is not a peer id")
        if len(self.ticket) > TICKET_BYTES_MAX:
            raise ValueError(f"the ticket has {len(self.ticket)} bytes")
        if len(self.addresses) > ADDRESSES_MAX:
            raise ValueError(f"{len(self.addresses)} addresses exceed the limit of {ADDRESSES_MAX}")
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError("an address is listed twice")
        for each in self.addresses:
            if each.peer is None or not each.port or each.is_unspecified:
                raise ValueError(f"{each} cannot be dialled")
            if each != _normal(each):
                raise ValueError(f"the host in {each} is not in its shortest form")

    @classmethod
    def of(
        cls, run: RunId, organiser: PeerId, addresses: Iterable[Address], ticket: bytes = b""
    ) -> Invitation:
        """Return an invitation with the first `addresses` that fit. Leave out addresses that nobody
        can dial."""
        usable = (each for each in addresses if each.peer and each.port and not each.is_unspecified)
        chosen = list(dict.fromkeys(map(_normal, usable)))[:ADDRESSES_MAX]
        while len(_symbols(cls(run, organiser, tuple(chosen), ticket))) > CHARACTERS_MAX:
            chosen.pop()
        return cls(run, organiser, tuple(chosen), ticket)


def encode(invitation: Invitation) -> str:
    """Return the invitation as a string in lower case."""
    return PREFIX + "".join(ALPHABET[symbol] for symbol in _symbols(invitation))


def decode(text: str) -> Invitation:
    """Return the invitation in `text`, which may come from anywhere. Spaces and line breaks do not
    count, and all letters may be in upper case.

    Raises:
        ConfigError: INVITE-BROKEN; the error says whether `text` was cut off or mistyped.
        VersionMismatch: INVITE-VERSION; another version of p2ptrain made the invitation.
    """
    symbols = _checked(text)
    if symbols[0] != VERSION:
        raise VersionMismatch(
            f"the invitation has version {symbols[0]}; this p2ptrain reads version {VERSION}",
            code="INVITE-VERSION",
            likely="a newer p2ptrain made the invitation",
            do="upgrade p2ptrain, or ask for an address (/ip4/…) instead of an invitation",
        )
    try:
        invitation = _invitation(_bytes(symbols[3:-_CHECKSUM]))
        if _symbols(invitation) != symbols:
            raise ValueError("it is not in its shortest form")
    except (RemoteProtocolError, ConfigError, ValueError, TypeError) as exc:
        why = exc.what if isinstance(exc, RemoteProtocolError | ConfigError) else str(exc)
        raise _broken(f"its content is malformed: {why}", "a faulty program made it") from exc
    return invitation


def _checked(text: str) -> list[int]:
    """Return the symbols after the prefix, from 0 to 31 each, once their checksum is right.

    Raises ConfigError: the length, a character or the checksum is wrong."""
    if len(text) > 2 * CHARACTERS_MAX:
        raise _broken(f"it has {len(text)} characters", "something else was pasted")
    word = "".join(text.split())
    if not word.isascii():
        raise _broken("it contains letters that invitations do not use", "it was mistyped")
    if not word.lower().startswith(PREFIX):
        raise _broken(f"it does not begin with {PREFIX}", "its beginning was cut off or mistyped")
    if word not in (word.lower(), word.upper()):
        raise _broken("it mixes capital and small letters", "a letter was mistyped")
    rest = word.lower()[len(PREFIX) :]
    for place, letter in enumerate(rest, 1):
        if letter not in ALPHABET:
            raise _broken(
                f"character {place} after the colon is {letter!r}, which invitations do not use",
                "it was mistyped; invitations never contain i, l, o or u",
            )
    symbols = [ALPHABET.index(letter) for letter in rest]
    length = 32 * symbols[1] + symbols[2] if len(symbols) >= 3 else _FRAME
    if len(symbols) == length and _FRAME <= length <= CHARACTERS_MAX:
        if _remainder(symbols) == _CONSTANT:
            return symbols
        raise _broken("its checksum is wrong", "a character was mistyped")
    if len(symbols) < length:
        least = f"it has {len(symbols)} characters after the colon, and should have {length}"
        raise _broken(least, "its end was cut off")
    raise _broken(f"it has {len(symbols) - length} characters too many", "it was mistyped")


def _broken(reason: str, likely: str) -> ConfigError:
    return ConfigError(
        f"this is not a complete invitation: {reason}",
        code="INVITE-BROKEN",
        likely=likely,
        do="copy the whole invitation again, from p2ptrain: to its last character",
    )


def _symbols(invitation: Invitation) -> list[int]:
    return framed(body_of(invitation))


def framed(body: bytes) -> list[int]:
    """Return the version, the length, `body` and the checksum, as numbers of five bits."""
    count = -(-8 * len(body) // 5)
    number = int.from_bytes(body, "big") << (5 * count - 8 * len(body))
    length = count + _FRAME
    start = [
        VERSION,
        *divmod(length % 1024, 32),
        *(number >> 5 * i & 31 for i in reversed(range(count))),
    ]
    check = _remainder([*start, *[0] * _CHECKSUM]) ^ _CONSTANT
    return [*start, *(check >> 5 * i & 31 for i in reversed(range(_CHECKSUM)))]


def _remainder(symbols: Iterable[int]) -> int:
    """Return the remainder of BIP 350 for `symbols`, without its human-readable part."""
    value = 1
    for symbol in symbols:
        top = value >> 25
        value = (value & 0x1FFFFFF) << 5 ^ symbol
        for bit, generator in enumerate(_GENERATOR):
            value ^= generator if top >> bit & 1 else 0
    return value


def _bytes(symbols: Sequence[int]) -> bytes:
    number, bits = 0, 5 * len(symbols)
    for symbol in symbols:
        number = number << 5 | symbol
    return (number >> bits % 8).to_bytes(bits // 8, "big")


def body_of(invitation: Invitation) -> bytes:
    """Return the run, the keys of all peers (the organiser's first), and each address with the
    place of its peer's key, and the ticket."""
    told = [each.peer for each in invitation.addresses if each.peer]
    peers = list(dict.fromkeys([invitation.organiser, *told]))
    places = {peer: place for place, peer in enumerate(peers)}
    addresses = [
        [_KINDS.index(each.kind), _host_bytes(each), each.port, places[each.peer]]
        for each in invitation.addresses
        if each.peer
    ]
    keys = [*map(public_key_of, peers)]
    return pack([bytes.fromhex(invitation.run), keys, addresses, invitation.ticket])


def _invitation(body: bytes) -> Invitation:
    """Decode a body. Raises RemoteProtocolError, ConfigError, ValueError or TypeError if it is
    malformed."""
    match unpack(body, bytes_max=CHARACTERS_MAX):
        case [bytes(run), [bytes(organiser), *others], list(addresses), bytes(ticket)]:
            peers = [peer_of_key(key) for key in (organiser, *others) if isinstance(key, bytes)]
            found = tuple(_address(each, peers) for each in addresses[: ADDRESSES_MAX + 1])
            return Invitation(RunId(run.hex()), peers[0], found, ticket)
    raise ValueError("its parts are missing or unknown")


def _address(value: object, peers: Sequence[PeerId]) -> Address:
    match value:
        case [int(kind), bytes(host), int(port), int(place)] if kind >= 0 <= place:
            name, peer = _KINDS[kind : kind + 1], peers[place : place + 1]
            if name and peer:
                is_name = name[0].startswith("dns")
                text = host.decode("ascii") if is_name else str(ipaddress.ip_address(host))
                return parse(f"/{name[0]}/{text}/tcp/{port}/p2p/{peer[0]}")
    raise ValueError("an address is malformed")


def _host_bytes(address: Address) -> bytes:
    if address.is_name:
        return address.host.encode("ascii")
    return ipaddress.ip_address(address.host).packed


def _normal(address: Address) -> Address:
    """Return the same address with its host in its shortest form."""
    host = address.host.lower()
    host = host if address.is_name else str(ipaddress.ip_address(host))
    return Address(address.kind, host, address.port, address.peer)
