"""The NAT of the emulator (nat.c) as a library for tests, and packets for it.

The C code knows no sockets and no clock, so these tests need a C compiler, but no root.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from tests.wan.harness import emulator

SYN, RST, ACK = 2, 4, 16
PACKET_BYTES = 256


class Verdict(IntEnum):
    DROP = 0
    PASS = 1
    BACK = 2


@dataclass(frozen=True, slots=True)
class Tcp:
    """A TCP packet without data. Addresses are pairs of a host and a port."""

    source: tuple[str, int]
    target: tuple[str, int]
    flags: int = SYN

    def to_bytes(self) -> bytes:
        (host, port), (other, to_port) = self.source, self.target
        hosts = socket.inet_aton(host) + socket.inet_aton(other)
        body = struct.pack(">HHIIBBHHH", port, to_port, 7, 0, 5 << 4, self.flags, 1024, 0, 0)
        total = checksum(hosts + struct.pack(">HH", 6, len(body)) + body)
        body = body[:16] + struct.pack(">H", total) + body[18:]
        head = struct.pack(">BBHIBBH", 0x45, 0, 40, 0, 64, 6, 0) + hosts
        return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Tcp:
        """Parse a packet, and check both of its checksums."""
        head, body = data[:20], data[20:]
        assert checksum(head) == 0
        assert checksum(head[12:20] + struct.pack(">HH", 6, len(body)) + body) == 0
        port, to_port = struct.unpack(">HH", body[:4])
        hosts = socket.inet_ntoa(head[12:16]), socket.inet_ntoa(head[16:20])
        return cls((hosts[0], port), (hosts[1], to_port), body[13])


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@cache
def _library() -> ctypes.CDLL:
    path = emulator.compiled("nat.so", "-shared", "-fPIC", sources=("nat.c",))
    library = ctypes.CDLL(str(path))
    library.nat_new.restype = ctypes.c_void_p
    library.nat_new.argtypes = [ctypes.c_char_p, ctypes.c_uint32]
    length = ctypes.POINTER(ctypes.c_int)
    library.nat_out.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
    library.nat_in.argtypes = [ctypes.c_void_p, ctypes.c_char_p, length, ctypes.c_int64]
    library.nat_free.argtypes = [ctypes.c_void_p]
    return library


class Nat:
    """A NAT of this kind at this outside address. Use it as a context manager."""

    def __init__(self, kind: str, outside: str = "10.77.1.1") -> None:
        (host,) = struct.unpack(">I", socket.inet_aton(outside))
        self._nat = _library().nat_new(kind.encode(), host)
        if not self._nat:
            raise ValueError(kind)

    def __enter__(self) -> Nat:
        return self

    def __exit__(self, *raised: object) -> None:
        _library().nat_free(self._nat)

    def leave(self, packet: Tcp, *, at_s: float = 0.0) -> Tcp | None:
        """Return `packet` as it looks outside; None if it is dropped."""
        data = ctypes.create_string_buffer(packet.to_bytes(), PACKET_BYTES)
        found = _library().nat_out(self._nat, data, 40, int(at_s * 1e9))
        return Tcp.from_bytes(data.raw[:40]) if found == Verdict.PASS else None

    def arrive(self, packet: Tcp, *, at_s: float = 0.0) -> tuple[Verdict, Tcp | None]:
        """Return what the NAT does with `packet`, which comes from outside, and the packet as it
        goes on or back."""
        data = ctypes.create_string_buffer(packet.to_bytes(), PACKET_BYTES)
        length = ctypes.c_int(40)
        found = Verdict(_library().nat_in(self._nat, data, ctypes.byref(length), int(at_s * 1e9)))
        if found is Verdict.DROP:
            return found, None
        return found, Tcp.from_bytes(data.raw[: length.value])
