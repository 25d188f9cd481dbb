"""A failed dial is reported soon, with a code, message and advice for the kind of failure."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from p2ptrain.errors import (
    ConfigError,
    NetworkUnreachable,
    PeerError,
    PeerUnreachable,
    RunMismatch,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, PeerConnected, PeerDisconnected, dialling, open_network
from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.book import NAMES_PER_PEER_MAX, AddressBook
from p2ptrain.net.host.hardening import build_host
from p2ptrain.net.listening import claimed, lock_folder
from p2ptrain.net.names import Resolver

from .conftest import DEADLINE_S, LOOPBACK, echo, eventually, everybody, host_of, identity, networks

NOBODY = Identity.from_seed(b"n" * 32).peer

Serve = Callable[[trio.SocketStream], Awaitable[None]]


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    """Yield the address of a TCP server that is not a peer."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: trio.serve_tcp(serve, 0, host="127.0.0.1", task_status=task_status)
        )
        port = listeners[0].socket.getsockname()[1]
        yield f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"
        nursery.cancel_scope.cancel()


async def web(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def closes(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def banner_then_silent(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x13/multistream/1.0.0\n")
    await trio.sleep_forever()


async def banner_then_garbage(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x13/multistream/1.0.0\n" + b"\x07/noise\n" + bytes(range(200)))
    await stream.receive_some()


async def half_a_banner(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\x13/multi")


async def test_both_ends_report_a_new_connection() -> None:
    async with networks(2) as (left, right):
        assert await left.connect(right.addresses()[0]) == right.peer
        assert await left.events.receive() == PeerConnected(right.peer)
        assert await right.events.receive() == PeerConnected(left.peer)
        assert (left.connected(), right.connected()) == ({right.peer}, {left.peer})
        assert left.addresses_of(right.peer) == right.addresses()


async def test_address_group_of_a_connected_peer_is_known() -> None:
    async with networks(2) as (ann, bob):
        await ann.connect(bob.addresses()[0])
        await eventually(lambda: ann.peer in bob.connected())
        assert (ann.site_of(bob.peer), bob.site_of(ann.peer)) == ("127.0.0.1", "127.0.0.1")
        await ann.disconnect(bob.peer)
        await eventually(lambda: ann.peer not in bob.connected())
        assert bob.site_of(ann.peer) == ""


async def test_repeated_connects_are_reported_only_once() -> None:
    async with networks(2) as (left, right):
        for _ in range(3):
            await left.connect(right.addresses()[0])
        assert await left.events.receive() == PeerConnected(right.peer)
        with pytest.raises(trio.WouldBlock):
            left.events.receive_nowait()


async def test_simultaneous_dials_count_as_one_connection() -> None:
    async with networks(2) as (left, right):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(left.connect, right.addresses()[0])
                nursery.start_soon(right.connect, left.addresses()[0])
        left.handle("/test/1", echo)
        assert await right.request(left.peer, "/test/1", b"x", deadline_s=DEADLINE_S) == b"x"
        assert await left.events.receive() == PeerConnected(right.peer)
        await left.disconnect(right.peer)
        assert await left.events.receive() == PeerDisconnected(right.peer)
        assert left.connected() == set()


async def test_both_ends_report_a_disconnect() -> None:
    async with networks(2) as (left, right):
        await left.connect(right.addresses()[0])
        await right.events.receive()
        await left.disconnect(right.peer)
        assert await right.events.receive() == PeerDisconnected(left.peer)
        assert right.connected() == set()


async def test_peer_is_reached_at_its_remembered_address() -> None:
    async with networks(2) as (left, right):
        with pytest.raises(PeerUnreachable, match="its address is not known"):
            await left.connect_peer(right.peer)
        left.remember(right.peer, [f"/ip4/127.0.0.1/tcp/{unused_port()}", *right.addresses()])
        await left.connect_peer(right.peer)
        assert left.connected() == {right.peer}


async def test_announcement_replaces_all_addresses_except_the_one_that_answered() -> None:
    async with networks(2) as (left, right):
        (here,) = right.addresses()
        left.remember(right.peer, [f"/ip4/127.0.0.1/tcp/{unused_port()}", here])
        await left.connect_peer(right.peer)
        left.remember(right.peer, ["/ip4/10.0.0.1/tcp/1"])
        assert left.addresses_of(right.peer) == [here, f"/ip4/10.0.0.1/tcp/1/p2p/{right.peer}"]
        assert left.known_addresses() == {right.peer: left.addresses_of(right.peer)}
        await left.disconnect(right.peer)
        await left.connect_peer(right.peer)
        assert left.connected() == {right.peer}


async def test_remembered_peer_that_is_down_raises_peer_unreachable() -> None:
    async with networks(1) as (left,):
        left.remember(NOBODY, [f"/ip4/127.0.0.1/tcp/{unused_port()}"])
        with pytest.raises(PeerUnreachable) as caught:
            await left.connect_peer(NOBODY, deadline_s=DEADLINE_S)
        assert caught.value.peer == NOBODY
        assert caught.value.code == "NET-REFUSED"


@pytest.mark.parametrize(
    ("serve", "code", "words"),
    [
        (web, "NET-NOT-LIBP2P", 'it answered "HTTP'),
        (silent, "NET-SILENT", "it sent no data"),
        (closes, "NET-RESET", "closed"),
        (banner_then_silent, "NET-SILENT", "handshake"),
        (banner_then_garbage, "NET-RESET", "handshake"),
        (half_a_banner, "NET-RESET", "closed"),
    ],
)
async def test_each_kind_of_wrong_answer_has_its_own_code(
    serve: Serve, code: str, words: str
) -> None:
    async with networks(1) as (network,), server(serve) as address:
        # A busy machine may need more time than the first deadline.
        for deadline_s in (1.0, 5.0, 20.0):
            with trio.fail_after(deadline_s + 8), pytest.raises(NetworkUnreachable) as caught:
                await network.connect(address, deadline_s=deadline_s)
            if words in caught.value.evidence[0]:
                break
        assert caught.value.code == code
        assert words in caught.value.evidence[0]
        assert address in caught.value.evidence[0]
        assert caught.value.likely
        assert caught.value.do
        assert caught.value.exit_code == 5
        assert network.connected() == set()


async def test_refused_connection_has_its_own_code() -> None:
    async with networks(1) as (network,):
        with pytest.raises(NetworkUnreachable) as caught:
            await network.connect(f"/ip4/127.0.0.1/tcp/{unused_port()}/p2p/{NOBODY}")
        assert caught.value.code == "NET-REFUSED"
        assert "no program listens" in caught.value.evidence[0]


@pytest.mark.parametrize("kind", ["dns", "dns4", "dns6"])
async def test_unknown_name_has_its_own_code(kind: str) -> None:
    async with networks(1) as (network,):
        with pytest.raises(NetworkUnreachable) as caught:
            await network.connect(f"/{kind}/no-such-name.invalid/tcp/1/p2p/{NOBODY}", deadline_s=8)
        assert caught.value.code == "NET-DNS"
        assert "DNS" in caught.value.evidence[0]


@pytest.fixture
def no_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Simulate DNS servers that never answer. Yield a list of the names that were looked up."""
    looked_up: list[str] = []
    over = threading.Event()

    def hangs(host: str, *args: object, **options: object) -> list[object]:
        looked_up.append(host)
        over.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no server answers")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    yield looked_up
    over.set()


async def test_unanswered_name_lookup_times_out(no_dns: list[str]) -> None:
    async with networks(1) as (network,):
        with pytest.raises(NetworkUnreachable) as caught:
            await network.connect(f"/dns4/seed.example/tcp/1/p2p/{NOBODY}", deadline_s=0.2)
        assert caught.value.code == "NET-DNS"
        assert "no answer" in caught.value.evidence[0]


async def test_hanging_name_lookups_do_not_use_up_threads_for_other_work(
    no_dns: list[str],
) -> None:
    """In a reported attack, lookups at DNS servers that never answer occupied all of trio's 40
    threads, and votes had to wait for a free thread."""
    async with networks(1) as (network,), trio.open_nursery() as nursery:

        async def dial(peer: PeerId) -> None:
            with suppress(PeerError):
                await network.connect_peer(peer, deadline_s=1.0)

        for number in range(2, 62):
            peer = identity(number).peer
            network.remember(peer, [f"/dns4/{n}.slow.example/tcp/1" for n in range(8)])
            nursery.start_soon(dial, peer)
        await eventually(lambda: len(no_dns) >= dialling.OTHERS_LOOKUPS)
        shared = trio.to_thread.current_default_thread_limiter()
        assert shared.borrowed_tokens == 0
        with trio.fail_after(DEADLINE_S):
            assert await trio.to_thread.run_sync(lambda: "a vote") == "a vote"
    assert len(no_dns) <= dialling.OTHERS_LOOKUPS


async def test_names_from_peers_do_not_block_the_users_lookup(
    no_dns: list[str],
) -> None:
    async with networks(1) as (network,):
        for number in range(2, 2 + 2 * dialling.OTHERS_LOOKUPS):
            network.remember(identity(number).peer, ["/dns4/slow.example/tcp/1"])
            with pytest.raises(PeerError):
                await network.connect_peer(identity(number).peer, deadline_s=0.1)
        with pytest.raises(NetworkUnreachable):
            await network.connect(f"/dns4/given.example/tcp/1/p2p/{NOBODY}", deadline_s=0.2)
        assert no_dns.count("given.example") == 1


async def test_peer_that_keeps_announcing_slow_names_does_not_use_all_lookups(
    no_dns: list[str],
) -> None:
    """Each heartbeat can announce new names. In a reported attack, one member occupied all eight
    lookup threads in this way."""
    slow, sound = identity(2).peer, identity(3).peer
    async with networks(1) as (network,):
        network.set_members([slow, sound])
        for number in range(2 * dialling.MEMBERS_LOOKUPS):
            network.remember(slow, [f"/dns4/{number}.slow.example/tcp/1"])
            with pytest.raises(PeerError):
                await network.connect_peer(slow, deadline_s=0.3)
        network.remember(sound, ["/dns4/sound.example/tcp/1"])
        with pytest.raises(PeerError):
            await network.connect_peer(sound, deadline_s=DEADLINE_S)
    *slow_names, last = no_dns
    assert last == "sound.example"
    assert len(slow_names) <= NAMES_PER_PEER_MAX


async def test_concurrent_dials_to_addresses_from_peers_are_bounded() -> None:
    """In an open run anybody can send us thousands of addresses that drop packets."""
    at_once = most = 0

    async def silent_probe(address: Address, resolver: Resolver, *, deadline_s: float) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await trio.sleep_forever()
        finally:
            at_once -= 1
        raise AssertionError

    me, member = identity(1), identity(2).peer
    book = AddressBook(member.__eq__)
    dialler = dialling.Dialler(
        build_host(me), me.peer, book, set, member.__eq__, probe=silent_probe
    )
    async with trio.open_nursery() as nursery:
        for number in range(2, 62):
            book.remember(identity(number).peer, [f"/ip4/10.0.0.1/tcp/{n}" for n in range(1, 9)])
        for number in range(61, 1, -1):
            nursery.start_soon(partial(dialler.connect_peer, identity(number).peer, deadline_s=60))
        await eventually(lambda: at_once == dialling.OTHERS_DIALS + 8)
        nursery.cancel_scope.cancel()
    assert most == dialling.OTHERS_DIALS + 8, (
        "there may be OTHERS_DIALS dials to strangers and 8 to the member"
    )


async def test_libp2p_does_not_dial_a_peer_by_itself() -> None:
    """Plain libp2p dials all addresses that a peer has ever claimed when we open a stream to that
    peer."""
    async with networks(2) as (left, right):
        peer = ID.from_base58(right.peer)
        address = Multiaddr(parse(right.addresses()[0]).transport)
        host_of(left).get_peerstore().add_addrs(peer, [address], 3600)
        with pytest.raises(SwarmException):
            await host_of(left).new_stream(peer, [TProtocol("/ipfs/ping/1.0.0")])
        assert right.connected() == set()


async def test_address_with_a_dns_name_is_dialled() -> None:
    async with networks(2) as (left, right):
        port = right.addresses()[0].split("/")[4]
        address = f"/dns4/localhost/tcp/{port}/p2p/{right.peer}"
        assert await left.connect(address) == right.peer


async def test_full_backlog_is_reported_as_a_timeout() -> None:
    """A listener with a full backlog does not answer a SYN, like a firewall that drops packets."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        address = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/p2p/{NOBODY}"
        async with networks(1) as (network,):
            with pytest.raises(NetworkUnreachable) as caught:
                await network.connect(address, deadline_s=0.5)
            assert caught.value.code == "NET-TIMEOUT"


async def test_wrong_peer_at_the_address_has_its_own_code() -> None:
    async with networks(2) as (left, right):
        address = right.addresses()[0].replace(right.peer, NOBODY)
        with pytest.raises(NetworkUnreachable) as caught:
            await left.connect(address)
        assert caught.value.code == "NET-WRONG-ID"
        assert f"{right.peer}, answers at that address" in caught.value.evidence[0]
        assert left.connected() == set()
        assert await left.connect(right.addresses()[0]) == right.peer


@pytest.mark.parametrize(
    ("address", "code"),
    [("nonsense", "ADDR-SYNTAX"), ("/ip4/127.0.0.1/tcp/1", "ADDR-NO-PEER-ID")],
)
async def test_malformed_address_is_a_configuration_error(address: str, code: str) -> None:
    async with networks(1) as (network,):
        with pytest.raises(ConfigError) as caught:
            await network.connect(address)
        assert caught.value.code == code


async def test_own_address_is_not_dialled() -> None:
    async with networks(1) as (network,):
        with pytest.raises(ConfigError) as caught:
            await network.connect(network.addresses()[0])
        assert caught.value.code == "ADDR-SELF"


class TestSeveralAddresses:
    async def test_one_bootstrap_peer_that_answers_is_enough(self) -> None:
        async with networks(2) as (left, right):
            dead = f"/ip4/127.0.0.1/tcp/{unused_port()}/p2p/{NOBODY}"
            assert await left.connect_any([dead, "x", *right.addresses()]) == right.peer

    async def test_evidence_has_a_line_for_each_address(self) -> None:
        async with networks(1) as (network,):
            addresses = [
                f"/ip4/127.0.0.1/tcp/{unused_port()}/p2p/{NOBODY}",
                f"/dns4/no-such-name.invalid/tcp/1/p2p/{NOBODY}",
                "nonsense",
            ]
            with pytest.raises(NetworkUnreachable) as caught:
                await network.connect_any(addresses)
        error = caught.value
        assert error.what == "none of the 3 addresses answered"
        assert error.code == "NET-DNS"  # the code of the DNS name, not of the loopback address
        assert len(error.evidence) == 3
        for address, line in zip(addresses, error.evidence, strict=True):
            assert line.startswith("tried   ")
            assert address in line

    async def test_list_of_malformed_addresses_is_a_configuration_error(self) -> None:
        async with networks(1) as (network,):
            with pytest.raises(ConfigError) as caught:
                await network.connect_any(["x", "y"])
        assert caught.value.code == "ADDR-SYNTAX"
        assert len(caught.value.evidence) == 2

    async def test_empty_list_of_addresses_is_reported(self) -> None:
        async with networks(1) as (network,):
            with pytest.raises(ConfigError) as caught:
                await network.connect_any([])
        assert caught.value.code == "ADDR-NONE"

    async def test_silent_addresses_share_the_time_limit(self) -> None:
        async with networks(1) as (network,), server(silent) as address:
            with trio.fail_after(15), pytest.raises(NetworkUnreachable):
                await network.connect_any([address] * 20, deadline_s=1.0)

    async def test_slow_peer_is_reached_among_many_dead_ones(self) -> None:
        async with (
            networks(2) as (left, right),
            server(silent) as dead,
            server(far_away(right)) as address,
        ):
            far = address.replace(NOBODY, right.peer)
            assert await left.connect_any([far, *of_many(dead)]) == right.peer

    async def test_fallback_addresses_have_a_separate_time_limit(self) -> None:
        async with networks(2) as (left, right), server(silent) as dead:
            some = of_many(dead)
            assert await left.connect_any(some, or_else=right.addresses(), deadline_s=1) == (
                right.peer
            )

    async def test_many_dead_addresses_take_no_longer_than_the_deadline(self) -> None:
        async with networks(1) as (network,), server(silent) as dead:
            with trio.fail_after(8), pytest.raises(NetworkUnreachable) as caught:
                await network.connect_any(of_many(dead), deadline_s=1.0)
        *tried, last = caught.value.evidence
        assert last == f"{DEAD - len(tried)} more addresses were not tried, because time ran out"


DEAD = 150


def of_many(address: str) -> list[str]:
    """Return `address` DEAD times, each time as the address of a different peer."""
    return [address.replace(NOBODY, identity(1000 + number).peer) for number in range(DEAD)]


def far_away(network: Network) -> Serve:
    """Return a relay to `network` that delays everything by 100 ms."""

    async def carry(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in source:
                with trio.move_on_after(0.1):
                    await trio.sleep_forever()
                await sink.send_all(piece)
            await sink.send_eof()

    async def serve(near: trio.SocketStream) -> None:
        port = int(network.addresses()[0].split("/")[4])
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as far,
            trio.open_nursery() as both,
        ):
            both.start_soon(carry, near, far)
            both.start_soon(carry, far, near)

    return serve


def put_instead(place: Path, what: str) -> int:
    """Replace the lock folder `place` by `what`, or change its mode to `what`. Return the user who
    wants to use it."""
    if what == "others can write":
        place.chmod(0o777)
    elif what == "another user's":
        place.rename(place.with_name("p2ptrain-4711"))
        return 4711
    else:
        elsewhere = place.rename(place.with_name("elsewhere"))
        place.touch() if what == "a file" else place.symlink_to(elsewhere)
    return os.getuid()


class TestListening:
    async def test_port_used_by_a_node_gives_a_clear_error(self) -> None:
        async with networks(1) as (network,):
            listen = [network.addresses()[0].split("/p2p/")[0]]
            with pytest.raises(ConfigError) as caught:
                async with open_network(identity(9), listen=listen, admitted=everybody):
                    pass
        assert caught.value.code == "PORT-IN-USE"

    async def test_port_used_by_another_program_gives_a_clear_error(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            listen = [f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"]
            with pytest.raises(ConfigError) as caught:
                async with open_network(identity(9), listen=listen, admitted=everybody):
                    pass
        assert caught.value.code == "PORT-IN-USE"
        assert listen[0].split("/")[-1] in caught.value.what

    async def test_port_for_all_addresses_that_is_in_use_gives_a_clear_error(self) -> None:
        """A seed's port must not be replaced by another one, because its address is handed out."""
        with socket.create_server(("0.0.0.0", 0)) as other, pytest.raises(ConfigError) as caught:
            port = other.getsockname()[1]
            with claimed(None, port):
                pass
        assert caught.value.code == "PORT-IN-USE"
        assert caught.value.what == f"port {port} is in use"
        assert f"--listen /ip4/0.0.0.0/tcp/{port + 2}" in caught.value.do
        with claimed(None, port) as addresses:
            assert {address.rpartition("/")[2] for address in addresses} == {str(port)}

    @pytest.mark.parametrize(
        "address",
        [
            "/ip4/203.0.113.7/tcp/4201",
            "/dns4/localhost/tcp/0",
            f"/ip4/127.0.0.1/tcp/0/p2p/{NOBODY}",
        ],
    )
    async def test_invalid_listen_address_gives_a_clear_error(self, address: str) -> None:
        with pytest.raises(ConfigError) as caught:
            async with open_network(identity(9), listen=[address], admitted=everybody):
                pass
        assert caught.value.code == "ADDR-LISTEN"

    async def test_port_is_free_again_after_the_node_ends(self) -> None:
        listen = [f"/ip4/127.0.0.1/tcp/{unused_port()}"]
        for _ in range(2):
            async with open_network(identity(9), listen=listen, admitted=everybody) as network:
                assert network.addresses() == [f"{listen[0]}/p2p/{network.peer}"]

    @pytest.mark.parametrize("what", ["a file", "a link", "others can write", "another user's"])
    def test_unsafe_lock_folder_is_not_used(
        self, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        place = lock_folder(os.getuid(), str(tmp_path))
        assert (place.parent, place.stat().st_mode & 0o777) == (tmp_path, 0o700)
        user = put_instead(place, what)
        with pytest.raises(ConfigError) as caught:
            lock_folder(user, str(tmp_path))
        assert caught.value.code == "LOCK-FOLDER"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        with pytest.raises(ConfigError):
            lock_folder(user, str(tmp_path))

    def test_port_is_locked_in_a_private_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listen = [f"/ip4/127.0.0.1/tcp/{unused_port()}"]
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with claimed(listen), pytest.raises(ConfigError) as caught, claimed(listen):
            pass
        assert caught.value.code == "PORT-IN-USE"
        (lock,) = (tmp_path / f"p2ptrain-{os.getuid()}").iterdir()
        assert lock.name == f"tcp-{listen[0].split('/')[-1]}.lock"

    async def test_node_that_does_not_listen_can_still_dial(self) -> None:
        async with networks(1) as (right,), networks(1, listen=()) as (same_id,):
            assert same_id.addresses() == []
            with pytest.raises(ConfigError):
                await same_id.connect(right.addresses()[0])
        async with (
            networks(1) as (right,),
            open_network(identity(9), listen=[], admitted=everybody) as left,
        ):
            right.handle("/test/1", echo)
            assert await left.connect(right.addresses()[0]) == right.peer
            assert await left.request(right.peer, "/test/1", b"x", deadline_s=DEADLINE_S) == b"x"

    async def test_wildcard_address_is_announced_as_dialable_addresses(self) -> None:
        async with networks(1, listen=["/ip4/0.0.0.0/tcp/0"]) as (network,):
            assert network.addresses()
            assert not any("0.0.0.0" in address for address in network.addresses())
            assert any("127.0.0.1" in address for address in network.addresses())

    async def test_configured_announcement_replaces_the_listen_addresses(self) -> None:
        announce = ["/dns4/seed.example/tcp/4201"]
        async with open_network(
            identity(9), listen=LOOPBACK, announce=announce, admitted=everybody
        ) as network:
            assert network.addresses() == [f"{announce[0]}/p2p/{network.peer}"]


async def test_exception_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(RunMismatch):
        async with networks(1):
            raise RunMismatch("another run")


async def test_closing_leaves_no_tasks_or_descriptors_behind() -> None:
    async with networks(2) as (left, right):
        await left.connect(right.addresses()[0])
    await eventually(lambda: trio.lowlevel.current_statistics().tasks_living < 12)
    descriptors = len(os.listdir("/proc/self/fd"))
    async with networks(2) as (left, right):
        left.handle("/test/1", echo)
        left.subscribe("topic")
        await right.connect(left.addresses()[0])
        await right.request(left.peer, "/test/1", b"x", deadline_s=DEADLINE_S)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
