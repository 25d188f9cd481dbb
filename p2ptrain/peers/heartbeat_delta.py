"""Heartbeats that contain only what changed since the last full one.

A *full beat* is an encoded `heartbeat`. A *small beat* refers to a full beat of the same
incarnation, called its base, and contains only the fields that differ from the base. It also
contains fields that became empty, so an omitted field always means "unchanged". The base and the
difference together form a full beat again, which the same decoder checks. So new heartbeat fields
do not need code here.

Small beats depend on the last full one and not on each other. Even if some are lost, duplicated or
late, each one that can be decoded gives exactly the fields that its sender encoded. A receiver can
tell that it missed the base. It then counts the sender as alive, ignores the small beat, and names
the sender in its own next heartbeat (`Heartbeat.lacks`). The sender then sends a full beat.

This module does not know what the fields mean, which peers exist, or how beats are sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.peers.heartbeat import COUNT_MAX, HEARTBEAT_BYTES_MAX, Heartbeat, decode, encode
from p2ptrain.peers.incarnations import INCARNATION_MAX

FULL_EVERY = 15
"""Number of beats from one full beat to the next. That is half a minute at the full rate, the
longest that a lost beat can go unnoticed."""

FULL_AT_FIRST = 5
"""Number of full beats after a start. Connections are still being made then, so most peers receive
one of these beats first."""

RARE = frozenset({"run", "mark", "trains", "endpoint", "addresses", "dialled", "dialable", "paths"})
"""Fields that cause a full beat when they change. They are large and rarely change."""

OF_EVERY_BEAT = frozenset({"incarnation", "serial"})


@dataclass(frozen=True, slots=True)
class FullHeartbeat:
    """A heartbeat with the encoding `wire` from which it was decoded."""

    heartbeat: Heartbeat
    wire: bytes


@dataclass(frozen=True, slots=True)
class HeartbeatDelta:
    """The difference from the full beat with serial `base`. `changed` are the fields that differ,
    in their form on the wire.

    Raises:
        RemoteProtocolError: the incarnation or a serial is out of range, or is repeated in
            `changed`.
    """

    incarnation: int
    serial: int
    base: int
    changed: dict[str, object]

    def __post_init__(self) -> None:
        if not 0 <= self.incarnation <= INCARNATION_MAX:
            raise RemoteProtocolError("a small heartbeat's incarnation is out of range")
        if not 0 <= self.base < self.serial <= COUNT_MAX:
            raise RemoteProtocolError("a small heartbeat's serial is out of range")
        if self.changed.keys() & OF_EVERY_BEAT:
            raise RemoteProtocolError("a small heartbeat repeats its incarnation or serial")

    def rests_on(self, base: Heartbeat) -> bool:
        return (base.incarnation, base.serial) == (self.incarnation, self.base)

    def follows(self, incarnation: int, serial: int) -> bool:
        """Return whether this beat is newer than the one with this incarnation and serial."""
        return (self.incarnation, self.serial) > (incarnation, serial)


Beat = FullHeartbeat | HeartbeatDelta


def counts_of(beat: Beat) -> tuple[int, int]:
    """Return the incarnation of the sender of `beat`, and the serial of `beat` within it."""
    counted = beat.heartbeat if isinstance(beat, FullHeartbeat) else beat
    return counted.incarnation, counted.serial


def decode_beat(payload: bytes) -> Beat:
    """Decode a beat. Raises RemoteProtocolError if it is malformed."""
    value = unpack(payload, bytes_max=HEARTBEAT_BYTES_MAX)
    if not isinstance(value, dict) or "base" not in value:
        return FullHeartbeat(decode(payload), payload)
    wire = fields(value, incarnation=int, serial=int, base=int, changed=dict)
    return HeartbeatDelta(**wire)  # type: ignore[arg-type]


def full_heartbeat(base: FullHeartbeat, small: HeartbeatDelta) -> Heartbeat:
    """Return the full heartbeat that `small` and its base form together.

    Raises:
        RemoteProtocolError: the two together do not form a valid heartbeat.
    """
    assert small.rests_on(base.heartbeat)
    counts = {"incarnation": small.incarnation, "serial": small.serial}
    return decode(pack(_fields_of(base.wire) | small.changed | counts))


@dataclass(slots=True)
class HeartbeatSender:
    """The beats that one node sends, in the order of their serials."""

    full_next: bool = True
    """Whether the next beat must be full, since a peer needs all fields. Set by `gossip`."""
    asked_s: float = -math.inf
    answered_s: float = -math.inf
    """When this node last sent an extra beat: `asked_s` to ask for a full beat, `answered_s`
    because a peer asked for one. Set by `gossip`."""
    _base: dict[str, object] = field(default_factory=dict)
    """The fields of the last full beat."""

    def encode_next(self, heartbeat: Heartbeat) -> bytes:
        """Return the bytes to send for `heartbeat`: a full beat if one is due, otherwise a small
        one."""
        full = encode(heartbeat)
        said = _fields_of(full)
        due = self.is_full_due(heartbeat.incarnation, heartbeat.serial)
        small = b"" if due else _small(self._base, said)
        # A small beat that saves little is not worth its dependence on a full one.
        if small and 2 * len(small) <= len(full):
            return small
        self._base = said
        self.full_next = False
        return full

    def is_full_due(self, incarnation: int, serial: int) -> bool:
        """Return whether the beat with this incarnation and serial must be full in any case."""
        if self.full_next or serial < FULL_AT_FIRST:
            return True
        base = self._base
        since = serial - int(str(base["serial"]))
        return incarnation != base["incarnation"] or not 0 < since < FULL_EVERY


def _small(base: dict[str, object], said: dict[str, object]) -> bytes:
    """Return the difference as a small beat; empty if it contains a field that needs a full
    beat."""
    changed = {name: said[name] for name in said.keys() - OF_EVERY_BEAT if said[name] != base[name]}
    if changed.keys() & RARE:
        return b""
    counts = {name: said[name] for name in OF_EVERY_BEAT}
    return pack({**counts, "base": base["serial"], "changed": changed})


def _fields_of(full: bytes) -> dict[str, object]:
    value = unpack(full, bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(value, dict)
    return value
