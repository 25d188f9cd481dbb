"""Claim the ports that a node listens on, so that only one node uses a port, and say at which
addresses the node can be dialled.

libp2p silently lets two hosts share a port, so that each gets some of the connections. It also does
not report when it cannot listen at all. So we test and lock the port beforehand.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from p2ptrain.errors import ConfigError
from p2ptrain.net.addresses import Address, parse

PORT_TRIES = 16
"""Number of free ports that are tried for IPv4 and IPv6 together. The first one is almost always
free for both."""


@contextmanager
def claimed(listen: Sequence[str] | None, port: int = 0) -> Iterator[list[str]]:
    """Claim the addresses in `listen` while the block lasts; yield them in libp2p's form. None
    stands for all addresses of this machine, of IPv4 and IPv6, at `port`, or at one free port.

    Raises:
        ConfigError: ADDR-SYNTAX, ADDR-LISTEN (a host name, or an address of another machine),
            PORT-IN-USE, LOCK-FOLDER.
    """
    with ExitStack() as stack:
        if listen is None:
            addresses = _claim_everywhere(stack, port)
        else:
            addresses = [_listening_address(text) for text in listen]
            _claim(stack, addresses)
        yield [address.transport for address in addresses]


def _claim_everywhere(stack: ExitStack, wanted: int) -> list[Address]:
    """Claim the port `wanted`, or a free one for 0, for all addresses of this machine. Raises
    ConfigError."""
    six = has_ipv6()
    for tries_left in reversed(range(1 if wanted else PORT_TRIES)):
        port = wanted or _free_port()
        addresses = [Address("ip4", "0.0.0.0", port), *([Address("ip6", "::", port)] * six)]
        try:
            _claim(stack, addresses)
        except ConfigError as exc:
            if exc.code != "PORT-IN-USE" or not tries_left:
                raise
        else:
            return addresses
    raise AssertionError("the last try returns or raises")


def _claim(stack: ExitStack, addresses: Sequence[Address]) -> None:
    """Claim `addresses` until `stack` is closed. Raises ConfigError."""
    with ExitStack() as on_failure:
        for address in {each.port: each for each in addresses if each.port}.values():
            on_failure.enter_context(_locked(address))
        for address in addresses:
            _try(address)
        stack.push(on_failure.pop_all())


def has_ipv6() -> bool:
    """Return whether this machine can listen on IPv6. It may still lack an address for it."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::", 0))
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("0.0.0.0", 0))
        return int(sock.getsockname()[1])


def listen_failed(listen: Sequence[str]) -> ConfigError:
    """Return the error for a libp2p host that could not listen on ports that were just free."""
    return ConfigError(
        f"cannot listen on {', '.join(listen)}",
        code="LISTEN-FAILED",
        likely="another program took the port just now",
        do="try again, or listen on another port",
    )


def dialable(listening: Sequence[Address]) -> list[Address]:
    """Return the addresses at which a node that listens on `listening` can be dialled now. For
    0.0.0.0 and ::, these are the address that this machine uses for the internet and, at the end of
    the list, loopback. The loopback address of IPv6 is left out beside the one of IPv4."""
    found, here = list[Address](), list[Address]()
    for address in listening:
        if not address.is_unspecified:
            found.append(address)
            continue
        six = address.kind == "ip6"
        if host := outward_host(six=six):
            found.append(replace(address, host=host))
        here.append(replace(address, host="::1" if six else "127.0.0.1"))
    return list(dict.fromkeys([*found, *sorted(here, key=lambda each: each.kind)[:1]]))


def outward_host(*, six: bool) -> str:
    """Return the local address that this machine would use to reach the internet; "" if it has
    none. A link-local address is none, because a peer cannot dial it. No packet is sent."""
    family, far = (socket.AF_INET6, "2001:db8::1") if six else (socket.AF_INET, "203.0.113.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((far, 9))
            host = str(sock.getsockname()[0])
    except OSError:
        return ""
    return "" if ip_address(host.partition("%")[0]).is_link_local else host


def _listening_address(text: str) -> Address:
    address = parse(text)
    if address.is_name or address.peer is not None:
        raise ConfigError(
            f"cannot listen on {text}",
            code="ADDR-LISTEN",
            likely="the address contains a host name or a peer id, which is not allowed here",
            do="give an address like /ip4/0.0.0.0/tcp/4201",
        )
    return address


@contextmanager
def _locked(address: Address) -> Iterator[None]:
    """Lock the port while the block lasts. Without the lock, two nodes that start at the same
    moment would both find the port free."""
    path = lock_folder(os.getuid(), tempfile.gettempdir()) / f"tcp-{address.port}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise _in_use(address) from exc
        yield
    finally:
        os.close(descriptor)


def lock_folder(user: int, shared: str) -> Path:
    """Return a folder for locks into which only `user` can write: below XDG_RUNTIME_DIR if that is
    set and private, else below the folder `shared`. A login session and a system service of the
    same user may use different folders. Then two nodes that start at the same moment can miss each
    other's lock.

    Raises ConfigError: LOCK-FOLDER."""
    name = f"p2ptrain-{user}"
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), shared):
        if folder and _belongs_to(user, path := Path(folder) / name):
            return path
    raise ConfigError(
        f"the folder {shared}/{name} is not private to this user",
        code="LOCK-FOLDER",
        likely="another user of this machine created it",
        do=(
            "set XDG_RUNTIME_DIR to a folder that only you can write to; or ask an administrator "
            "to remove this folder"
        ),
    )


def _belongs_to(user: int, path: Path) -> bool:
    """Create the folder if it is missing. Return whether it exists and only `user` can write to
    it."""
    try:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        found = path.lstat()
    except OSError:
        return False
    owned = stat.S_ISDIR(found.st_mode) and found.st_uid == user
    return owned and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _try(address: Address) -> None:
    family = socket.AF_INET6 if address.kind == "ip6" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address.host, address.port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise _in_use(address) from exc
            raise ConfigError(
                f"cannot listen on {address}: {exc.strerror}",
                code="ADDR-LISTEN",
                likely="the address is not one of this machine's, or the port is below 1024",
                do="listen on /ip4/0.0.0.0/tcp/4201",
            ) from exc


def _in_use(address: Address) -> ConfigError:
    return ConfigError(
        f"port {address.port} is in use",
        code="PORT-IN-USE",
        likely="another node, or another program, listens on it",
        do=f"stop it, or choose another port: --listen {replace(address, port=address.port + 2)}",
    )
