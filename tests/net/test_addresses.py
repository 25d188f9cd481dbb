"""Parsing of addresses, the error for a malformed address, and the cache of addresses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import ConfigError
from p2ptrain.identity import Identity
from p2ptrain.net.addresses import Address, parse, parse_told, parse_with_peer
from p2ptrain.net.book import (
    ADDRESSES_PER_PEER_MAX,
    HEARSAY_PEERS_MAX,
    HEARSAY_PER_PEER_MAX,
    HEARSAY_S,
    PEERS_MAX,
    AddressBook,
    PeerCache,
    newest_first,
)
from tests.process_limits import no_file_grows

PEER = Identity.from_seed(b"p" * 32).peer
OTHER = Identity.from_seed(b"o" * 32).peer
HERE = f"/ip4/127.0.0.1/tcp/4201/p2p/{PEER}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/ip4/203.0.113.7/tcp/4201", Address("ip4", "203.0.113.7", 4201)),
        (HERE, Address("ip4", "127.0.0.1", 4201, PEER)),
        ("/ip6/::1/tcp/0", Address("ip6", "::1", 0)),
        ("/dns/seed.example/tcp/80", Address("dns", "seed.example", 80)),
        ("/dns4/a-b.example./tcp/65535", Address("dns4", "a-b.example.", 65535)),
        ("/dns6/localhost/tcp/1", Address("dns6", "localhost", 1)),
    ],
)
def test_parsed_address_is_written_unchanged(text: str, address: Address) -> None:
    assert parse(text) == address
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "203.0.113.7:4201",
        "http://203.0.113.7:4201",
        "/ip4/203.0.113.7",
        "/ip4/203.0.113.7/tcp",
        "/ip4/203.0.113.7/tcp/",
        "/ip4/203.0.113.7/tcp/65536",
        "/ip4/203.0.113.7/tcp/-1",
        "/ip4/203.0.113.7/tcp/99999999999999999999",
        "/ip4/203.0.113.700/tcp/1",
        "/ip6/fe80::1%eth0/tcp/1",
        "/ip6/fe80::1%\x1b[2J/tcp/1",
        "/ip6/fe80::1%\r\n/tcp/1",
        "/ip4/::1/tcp/1",
        "/ip6/127.0.0.1/tcp/1",
        "/ip4/seed.example/tcp/1",
        "/dns4/-bad-/tcp/1",
        "/dns4/a b/tcp/1",
        "/dns4//tcp/1",
        "/ip4/203.0.113.7/udp/1/quic-v1",
        "/ip4/203.0.113.7/udp/1",
        "/unix/run/socket/tcp/1",
        "/ip4/203.0.113.7/tcp/1/p2p/",
        "/ip4/203.0.113.7/tcp/1/p2p/12D3KooW",
        f"/ip4/203.0.113.7/tcp/1/p2p/{PEER[:-1]}",
        f"/ip4/203.0.113.7/tcp/1/peer/{PEER}",
        f"{HERE}/p2p-circuit",
        "/ip4/203.0.113.7/tcp/1\u0660",
        "/dns4/" + "a" * 500 + "/tcp/1",
    ],
)
def test_malformed_address_raises_a_clear_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.code == "ADDR-SYNTAX"
    assert caught.value.exit_code == 2
    assert caught.value.do


@given(st.text(max_size=60) | st.from_regex(r"/(ip4|dns)/[^/]*/tcp/[^/]*(/p2p/.*)?"))
def test_any_text_parses_or_raises_a_clear_error(text: str) -> None:
    try:
        address = parse(text)
    except ConfigError:
        return
    assert parse(str(address)) == address


def test_address_to_dial_must_name_its_peer() -> None:
    assert parse_with_peer(HERE) == (parse(HERE), PEER)
    with pytest.raises(ConfigError) as caught:
        parse_with_peer("/ip4/127.0.0.1/tcp/4201")
    assert caught.value.code == "ADDR-NO-PEER-ID"


def test_only_dialable_addresses_from_peers_are_kept() -> None:
    told = [
        "/ip4/10.0.0.1/tcp/4201",
        f"/ip4/10.0.0.2/tcp/4201/p2p/{PEER}",
        f"/ip4/10.0.0.3/tcp/4201/p2p/{OTHER}",
        "/ip4/0.0.0.0/tcp/4201",
        "/ip4/10.0.0.4/tcp/0",
        "nonsense",
        "/ip4/10.0.0.5/udp/4201/quic-v1",
    ]
    assert [address.host for address in parse_told(told, PEER)] == ["10.0.0.1", "10.0.0.2"]


class TestAddressBook:
    def test_new_announcement_replaces_the_earlier_one(self) -> None:
        book = AddressBook()
        book.remember(PEER, [f"/ip4/10.0.0.1/tcp/{port}" for port in range(1, 21)])
        ports = [address.port for address in book.known(PEER)]
        assert ports == list(range(1, 1 + ADDRESSES_PER_PEER_MAX))
        book.remember(PEER, ["/ip4/10.0.0.1/tcp/30", "nonsense", "/ip4/10.0.0.1/tcp/31"])
        assert [address.port for address in book.known(PEER)] == [30, 31]
        book.remember(PEER, [])
        assert book.snapshot() == {}

    def test_address_where_a_peer_answered_is_kept_when_it_announces_others(self) -> None:
        """If a user has forwarded a port by hand, the peer does not know its own best address."""
        book = AddressBook()
        book.note_answer(PEER, parse("/dns4/opened.example/tcp/1"))
        for port in range(2, 4):
            many = [f"/ip4/10.0.0.{n}/tcp/{port}" for n in range(2, 20)]
            book.remember(PEER, ["/dns4/a.example/tcp/1", "/dns4/b.example/tcp/1", *many])
        known = book.known(PEER)
        assert [a.host for a in known[:4]] == [
            "opened.example",
            "a.example",
            "10.0.0.2",
            "10.0.0.3",
        ]
        assert {a.port for a in known if not a.is_name} == {3}
        assert len(known) == ADDRESSES_PER_PEER_MAX
        book.note_answer(PEER, parse("/ip4/10.0.0.2/tcp/3"))
        assert book.known(PEER)[0].host == "10.0.0.2"
        assert "opened.example" not in [a.host for a in book.known(PEER)]

    def test_after_a_restart_an_announcement_replaces_all_but_the_first_address(self) -> None:
        before, book = AddressBook(), AddressBook()
        before.remember(PEER, ["/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/1"])
        before.note_answer(PEER, parse("/ip4/203.0.113.7/tcp/1"))
        book.recall(PEER, before.snapshot()[PEER])
        assert book.snapshot() == before.snapshot()
        book.remember(PEER, ["/ip4/10.0.0.3/tcp/1"])
        assert [a.host for a in book.known(PEER)] == ["203.0.113.7", "10.0.0.3"]

    def test_silent_peers_are_forgotten_but_members_are_kept(self) -> None:
        book = AddressBook({OTHER}.__contains__)
        book.remember(OTHER, ["/ip4/127.0.0.1/tcp/1"])
        peers = [Identity.from_seed(n.to_bytes(32, "big")).peer for n in range(PEERS_MAX + 2)]
        for peer in [*peers[:PEERS_MAX], peers[0], *peers[PEERS_MAX:]]:
            book.remember(peer, ["/ip4/127.0.0.1/tcp/1"])
        assert set(book.snapshot()) == {OTHER, *peers} - set(peers[1:4])

    def test_addresses_reported_by_others_come_last_and_expire(self) -> None:
        book = AddressBook()
        book.remember(PEER, ["/ip4/10.0.0.1/tcp/1"])
        book.record_reported(PEER, ["/ip4/10.0.0.9/tcp/1", "/ip4/10.0.0.1/tcp/1"], 0.0)
        book.record_reported(OTHER, ["/ip4/10.0.0.9/tcp/2"], 0.0)
        hosts = [address.host for address in book.addresses_of(PEER, 1.0)]
        assert hosts == ["10.0.0.1", "10.0.0.9"]
        assert book.peers(1.0) == [PEER, OTHER]
        assert list(book.snapshot()) == [PEER]
        assert [a.host for a in book.addresses_of(PEER, HEARSAY_S)] == ["10.0.0.1"]
        assert book.addresses_of(OTHER, HEARSAY_S) == []
        assert book.peers(HEARSAY_S) == [PEER]

    def test_reported_addresses_are_bounded_and_exclude_dns_names(self) -> None:
        book = AddressBook({PEER}.__contains__)
        book.record_reported(PEER, [f"/ip4/10.0.0.{n}/tcp/1" for n in range(1, 30)], 0.0)
        assert len(book.addresses_of(PEER, 0.0)) == HEARSAY_PER_PEER_MAX
        book.record_reported(OTHER, ["/dns4/slow.example/tcp/1"], 0.0)
        assert book.addresses_of(OTHER, 0.0) == []
        for number in range(HEARSAY_PEERS_MAX + 3):
            somebody = Identity.from_seed(number.to_bytes(32, "big")).peer
            book.record_reported(somebody, ["/ip4/10.0.0.1/tcp/1"], 0.0)
        assert len(book.peers(0.0)) == HEARSAY_PEERS_MAX
        assert PEER in book.peers(0.0)

    def test_number_of_dns_names_of_a_peer_is_bounded(self) -> None:
        book = AddressBook()
        book.remember(
            PEER, [f"/dns4/{n}.example/tcp/1" for n in range(6)] + ["/ip4/10.0.0.1/tcp/1"]
        )
        hosts = [address.host for address in book.known(PEER)]
        assert hosts == ["0.example", "1.example", "10.0.0.1"]

    def test_malformed_address_is_not_stored(self) -> None:
        book = AddressBook()
        book.remember(PEER, ["nonsense"])
        assert book.snapshot() == {}

    def test_most_recently_heard_peer_is_listed_first(self) -> None:
        book = AddressBook()
        book.remember(PEER, ["/ip4/10.0.0.1/tcp/2", "/ip4/10.0.0.1/tcp/1"])
        book.remember(OTHER, ["/ip4/10.0.0.2/tcp/1"])
        order = [address.split("/p2p/")[0] for address in newest_first(book.snapshot())]
        assert order == ["/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/2", "/ip4/10.0.0.1/tcp/1"]
        assert newest_first({}) == []


class TestPeerCache:
    def test_saved_addresses_are_loaded_again(self, tmp_path: Path) -> None:
        cache = PeerCache(tmp_path / "peers.json")
        cache.save({PEER: [HERE]})
        assert cache.load() == {PEER: [HERE]}
        assert cache.complaint == ""
        assert os.listdir(tmp_path) == ["peers.json"]

    def test_missing_file_is_an_empty_cache(self, tmp_path: Path) -> None:
        cache = PeerCache(tmp_path / "peers.json")
        assert cache.load() == {}
        assert cache.complaint == ""

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b"1" * (3 << 20)],
        ids=["empty", "truncated", "a list", "a number", "not text", "deeply nested", "huge"],
    )
    def test_broken_file_is_ignored_with_a_message(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "peers.json"
        path.write_bytes(content)
        cache = PeerCache(path)
        assert cache.load() == {}
        assert "peers.json was ignored" in cache.complaint

    def test_folder_in_place_of_the_file_is_ignored_with_a_message(self, tmp_path: Path) -> None:
        cache = PeerCache(tmp_path)
        assert cache.load() == {}
        assert "cannot be read" in cache.complaint

    def test_invalid_entries_of_the_file_are_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "peers.json"
        entries = {
            PEER: [HERE, 7, "nonsense", f"/ip4/127.0.0.1/tcp/1/p2p/{OTHER}"],
            OTHER: "no list",
            "nobody": ["/ip4/127.0.0.1/tcp/1"],
        }
        path.write_text(json.dumps(entries))
        assert PeerCache(path).load() == {PEER: [HERE]}

    def test_full_file_keeps_members_and_the_newest_peers(self, tmp_path: Path) -> None:
        cache = PeerCache(tmp_path / "peers.json")
        names = [f"dns4/{'x' * 60}.{'y' * 60}.{'z' * 60}.n{number}" for number in range(2)]
        names += [f"ip6/2001:db8:aaaa:bbbb:cccc:dddd:eeee:f00{number}" for number in range(6)]
        met = {
            peer: [f"/{name}/tcp/4201/p2p/{peer}" for name in names]
            for peer in (Identity.from_seed(n.to_bytes(32, "big")).peer for n in range(PEERS_MAX))
        }
        order = list(met)
        members = [*order[:50], order[60]]
        cache.save(met, members.__contains__)
        kept = cache.load()
        assert cache.complaint == ""
        newest = order[PEERS_MAX - len(kept) + len(members) :]
        assert list(kept) == [*members, *newest]
        assert all(kept[peer] == met[peer] for peer in kept)
        assert len(kept) > 800

    def test_failed_save_keeps_the_old_file(self, tmp_path: Path) -> None:
        cache = PeerCache(tmp_path / "peers.json")
        cache.save({PEER: [HERE]})
        with no_file_grows(), pytest.raises(OSError, match="too large"):
            cache.save({})
        assert cache.load() == {PEER: [HERE]}
        assert os.listdir(tmp_path) == ["peers.json"]
