"""Claim the ports that a node listens on, so that only one node uses a port.

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
from pathlib import Path

from p2ptrain.errors import ConfigError
from p2ptrain.net.addresses import Address, parse


@contextmanager
def claimed(listen: Sequence[str]) -> Iterator[list[str]]:
    """Claim the addresses in `listen` while the block lasts; yield them in libp2p's form.

    Raises:
        ConfigError: ADDR-SYNTAX, ADDR-LISTEN (a host name, or an address of another machine),
            PORT-IN-USE, LOCK-FOLDER.
    """
    addresses = [_listening_address(text) for text in listen]
    with ExitStack() as stack:
        for address in addresses:
            if address.port:
                stack.enter_context(_locked(address))
            _try(address)
        yield [address.transport for address in addresses]


def listen_failed(listen: Sequence[str]) -> ConfigError:
    """Return the error for a libp2p host that could not listen on ports that were just free."""
    return ConfigError(
        f"cannot listen on {', '.join(listen)}",
        code="LISTEN-FAILED",
        likely="another program took the port just now",
        do="try again, or listen on another port",
    )


def dialable(address: Address) -> list[Address]:
    """Return the addresses at which a node that listens on `address` can be dialled. For 0.0.0.0
    and ::, these are the address that this machine uses for the internet, and loopback."""
    if not address.is_unspecified:
        return [address]
    six = address.kind == "ip6"
    hosts = [outward_host(six=six), "::1" if six else "127.0.0.1"]
    return [Address(address.kind, host, address.port) for host in dict.fromkeys(hosts) if host]


def outward_host(*, six: bool) -> str:
    """Return the local address that this machine would use to reach the internet. No packet is
    sent."""
    family, far = (socket.AF_INET6, "2001:db8::1") if six else (socket.AF_INET, "203.0.113.1")
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((far, 9))
        except OSError:
            return ""
        return str(sock.getsockname()[0])


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
    path = _own_folder() / f"tcp-{address.port}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise _in_use(address) from exc
        yield
    finally:
        os.close(descriptor)


def _own_folder() -> Path:
    """Return a folder for locks into which nobody else can write. A login session and a system
    service of the same user may use different folders. Then two nodes that start at the same moment
    can miss each other's lock."""
    name, shared = f"p2ptrain-{os.getuid()}", tempfile.gettempdir()
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), shared):
        if folder and _is_ours(path := Path(folder) / name):
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


def _is_ours(path: Path) -> bool:
    """Create the folder if it is missing. Return whether it exists and only we can write to it."""
    try:
        with suppress(FileExistsError):
            path.mkdir(0o700)
        found = path.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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
        do=f"stop it, or listen on another port, such as {address.port + 1}",
    )
