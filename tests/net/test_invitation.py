"""An invitation has one encoding, which survives copying, and every typo in it is noticed."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.errors import ConfigError, VersionMismatch
from p2ptrain.identity import Identity
from p2ptrain.ids import RunId
from p2ptrain.net import invitation as module
from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.invitation import (
    ADDRESSES_MAX,
    CHARACTERS_MAX,
    PREFIX,
    TICKET_BYTES_MAX,
    Invitation,
    decode,
    encode,
)

ORGANISER, ANN, BOB = (Identity.from_seed(bytes([number]) * 32).peer for number in (1, 2, 3))
RUN = RunId("a7" * 32)
SAMPLE = Invitation.of(
    RUN,
    ORGANISER,
    [
        parse(f"/dns4/seed.example/tcp/4201/p2p/{ORGANISER}"),
        parse(f"/ip4/198.51.100.7/tcp/4201/p2p/{ANN}"),
    ],
)
WRITTEN = encode(SAMPLE)
GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)

names = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,9}){1,3}", fullmatch=True)
hosts = st.one_of(
    st.tuples(st.just("ip4"), st.ip_addresses(v=4).map(str)),
    st.tuples(st.just("ip6"), st.ip_addresses(v=6).map(str)),
    st.tuples(st.sampled_from(["dns", "dns4", "dns6"]), names),
)
addresses = st.builds(
    lambda host, port, peer: Address(host[0], host[1], port, peer),
    hosts,
    st.integers(0, 65535),
    st.sampled_from([None, ORGANISER, ANN, BOB]),
)
invitations = st.builds(
    Invitation.of,
    st.binary(min_size=32, max_size=32).map(lambda data: RunId(data.hex())),
    st.sampled_from([ORGANISER, ANN]),
    st.lists(addresses, max_size=12),
    st.binary(max_size=TICKET_BYTES_MAX),
)


@given(invitations)
def test_decoded_invitation_equals_the_encoded_one(invitation: Invitation) -> None:
    text = encode(invitation)
    assert text.startswith(PREFIX)
    assert len(text) <= len(PREFIX) + CHARACTERS_MAX
    assert decode(text) == decode(text.upper()) == decode(f" {text[:30]}\n  {text[30:]} ")
    assert decode(text) == invitation


@given(st.lists(addresses, max_size=12))
def test_invitation_keeps_the_first_addresses_that_can_be_dialled(found: list[Address]) -> None:
    usable = [
        each
        for each in found
        if each.peer
        and each.port
        and (each.is_name or not ipaddress.ip_address(each.host).is_unspecified)
    ]
    kept = [str(each) for each in Invitation.of(RUN, ORGANISER, found).addresses]
    assert kept == list(dict.fromkeys(map(str, usable)))[:ADDRESSES_MAX]


def test_every_typo_in_one_character_is_noticed() -> None:
    letters = {*module.ALPHABET, *"ilouILOUA:.-é"}
    for place, right in enumerate(WRITTEN):
        for wrong in letters - {right}:
            with pytest.raises(ConfigError):
                decode(WRITTEN[:place] + wrong + WRITTEN[place + 1 :])


@settings(max_examples=300)
@given(st.data())
def test_changed_missing_or_swapped_characters_are_noticed(data: st.DataObject) -> None:
    place = data.draw(st.integers(len(PREFIX), len(WRITTEN) - 1), "place")
    end = data.draw(st.integers(place, min(len(WRITTEN), place + 5)), "end")
    fresh = data.draw(st.text(module.ALPHABET, max_size=6), "fresh")
    text = WRITTEN[:place] + fresh + WRITTEN[end:]
    if text != WRITTEN:
        with pytest.raises((ConfigError, VersionMismatch)):
            decode(text)


def made_by_hand(version: int, body: bytes) -> str:
    """Return an invitation of any version and content, with a right length and checksum: the
    definition of the format once more, for the sake of comparison."""
    bits = "".join(f"{byte:08b}" for byte in body)
    bits += "0" * (-len(bits) % 5)
    symbols = [int(bits[at : at + 5], 2) for at in range(0, len(bits), 5)]
    length = len(symbols) + 9
    start = [version, length // 32, length % 32, *symbols]
    check = 1
    for symbol in (*start, 0, 0, 0, 0, 0, 0):  # the checksum of BIP 350
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ symbol
        for bit, generator in enumerate(GENERATORS):
            check ^= generator * (top >> bit & 1)
    check ^= 0x2BC830A3
    end = [int(f"{check:030b}"[at : at + 5], 2) for at in range(0, 30, 5)]
    return PREFIX + "".join(module.ALPHABET[each] for each in [*start, *end])


def test_format_is_what_its_description_says() -> None:
    assert made_by_hand(1, module.body_of(SAMPLE)) == WRITTEN


BROKEN: list[tuple[str, Callable[[], str], str]] = [
    ("an address", lambda: "/ip4/203.0.113.7/tcp/4201", "it does not begin with p2ptrain:"),
    ("nothing after the colon", lambda: PREFIX, "it has 0 characters after the colon"),
    ("cut off", lambda: WRITTEN[:-20], f"and should have {len(WRITTEN) - len(PREFIX)}"),
    ("too long", lambda: WRITTEN + "00", "2 characters too many"),
    ("twice", lambda: WRITTEN + WRITTEN, "is 'i', which invitations do not use"),
    ("look-alike", lambda: WRITTEN[:20] + "o" + WRITTEN[21:], "character 12 after the colon is"),
    ("mixed case", lambda: WRITTEN[:-40] + WRITTEN[-40:].upper(), "mixes capital and small"),
    ("a whole page", lambda: PREFIX + "0" * 9999, "it has 10008 characters"),
    ("noise", lambda: made_by_hand(1, b"\xc1"), "its content is malformed"),
    ("other parts", lambda: made_by_hand(1, b"\x90"), "its parts are missing or unknown"),
    (
        "padding",
        lambda: made_by_hand(1, module.body_of(SAMPLE) + b"\0"),
        "its content is malformed",
    ),
]


@pytest.mark.parametrize(
    ("make", "reason"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_error_says_what_is_wrong(make: Callable[[], str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(make())
    assert caught.value.code == "INVITE-BROKEN"
    assert reason in caught.value.what
    assert "copy the whole invitation again" in caught.value.do


def test_invitation_of_another_version_asks_for_an_upgrade() -> None:
    with pytest.raises(VersionMismatch) as caught:
        decode(made_by_hand(2, b"anything"))
    assert (caught.value.code, caught.value.exit_code) == ("INVITE-VERSION", 7)
    assert "upgrade" in caught.value.do


def test_long_addresses_are_left_out_if_they_do_not_fit() -> None:
    label = "a" * 63
    long = [parse(f"/dns/{label}.{label}.{label}.n{n}/tcp/1/p2p/{ANN}") for n in range(8)]
    kept = Invitation.of(RUN, ORGANISER, long).addresses
    assert 0 < len(kept) < 8
    assert list(kept) == long[: len(kept)]


@pytest.mark.parametrize(
    "address",
    [
        Address("ip4", "1.2.3.4", 1),
        Address("ip4", "0.0.0.0", 1, ANN),
        Address("dns", "A.b", 1, ANN),
    ],
)
def test_invalid_invitation_cannot_exist(address: Address) -> None:
    with pytest.raises(ValueError):
        Invitation(RUN, ORGANISER, (address,))
