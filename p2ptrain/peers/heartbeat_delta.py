"""Heartbeats that carry only what changed since the last full one.

A *full beat* is an encoded `heartbeat`. A *small beat* names a full one of the same incarnation,
its base, and contains the fields that differ from it. A field that became empty is among them, so
leaving a field out never means anything but "unchanged". The base and the difference together are a
full beat again, and pass the same decoder. So a field that is added to heartbeats needs no code
here.

Small beats depend on the last full one and not on each other. Even if some are lost, doubled or
late, each one that can be decoded says exactly what its sender meant. A receiver that missed the
base knows that it did. It guesses nothing, counts the sender as alive, and names the sender in its
own next heartbeat (`Heartbeat.lacks`). The sender then sends a full beat.

This module does not know what the fields mean, which peers there are, nor how beats travel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.peers.heartbeat import COUNT_MAX, HEARTBEAT_BYTES_MAX, Heartbeat, decode, encode
from p2ptrain.peers.incarnations import INCARNATION_MAX

FULL_EVERY = 15
"""Beats from one full beat to the next. Half a minute at the full rate: the longest that an
unnoticed loss can last.
"""

FULL_AT_FIRST = 5
"""Beats after a start that are all full. Connections are still being made then, so one of these is
the first that most peers hear.
"""

RARE = frozenset({"run", "mark", "trains", "endpoint", "addresses", "dialled", "dialable", "paths"})
"""Fields whose change causes a full beat: the large ones, which seldom change."""

OF_EVERY_BEAT = frozenset({"incarnation", "serial"})


@dataclass(frozen=True, slots=True)
class FullHeartbeat:
    """A heartbeat with its encoding `wire`, which it was decoded from."""

    heartbeat: Heartbeat
    wire: bytes


@dataclass(frozen=True, slots=True)
class HeartbeatDelta:
    """The difference from a full beat. `changed` are the fields, as on the wire, that differ from
    the full beat with serial `base`.

    Raises:
        RemoteProtocolError: no heartbeat has such counts, or they are among the changes as well.
    """

    incarnation: int
    serial: int
    base: int
    changed: dict[str, object]

    def __post_init__(self) -> None:
        if not 0 <= self.incarnation <= INCARNATION_MAX:
            raise RemoteProtocolError("a small heartbeat holds an incarnation out of range")
        if not 0 <= self.base < self.serial <= COUNT_MAX:
            raise RemoteProtocolError("a small heartbeat holds a count out of range")
        if self.changed.keys() & OF_EVERY_BEAT:
            raise RemoteProtocolError("a small heartbeat has its counts twice")

    def rests_on(self, base: Heartbeat) -> bool:
        return (base.incarnation, base.serial) == (self.incarnation, self.base)

    def follows(self, incarnation: int, serial: int) -> bool:
        """Return whether this beat comes after the one with these counts."""
        return (self.incarnation, self.serial) > (incarnation, serial)


Beat = FullHeartbeat | HeartbeatDelta


def counts_of(beat: Beat) -> tuple[int, int]:
    """Return the incarnation of the sender of `beat`, and the serial of `beat` within it."""
    counted = beat.heartbeat if isinstance(beat, FullHeartbeat) else beat
    return counted.incarnation, counted.serial


def decode_beat(payload: bytes) -> Beat:
    """Decode a beat. Raises RemoteProtocolError if it is not as we would have sent it."""
    value = unpack(payload, bytes_max=HEARTBEAT_BYTES_MAX)
    if not isinstance(value, dict) or "base" not in value:
        return FullHeartbeat(decode(payload), payload)
    wire = fields(value, incarnation=int, serial=int, base=int, changed=dict)
    return HeartbeatDelta(**wire)  # type: ignore[arg-type]


def full_heartbeat(base: FullHeartbeat, small: HeartbeatDelta) -> Heartbeat:
    """Return the full heartbeat that `small` and its base make together.

    Raises:
        RemoteProtocolError: the two together are no heartbeat.
    """
    assert small.rests_on(base.heartbeat)
    counts = {"incarnation": small.incarnation, "serial": small.serial}
    return decode(pack(_fields_of(base.wire) | small.changed | counts))


@dataclass(slots=True)
class HeartbeatSender:
    """The beats that one node sends, in the order of their serials."""

    full_next: bool = True
    """Whether the next beat must be full, since somebody needs all fields. Set by `gossip`."""
    asked_s: float = -math.inf
    answered_s: float = -math.inf
    """When this node last sent a beat out of turn: `asked_s` to ask for a full beat, `answered_s`
    because it was asked for one. Set by `gossip`.
    """
    _base: dict[str, object] = field(default_factory=dict)
    """The fields of the last full beat."""

    def encode_next(self, heartbeat: Heartbeat) -> bytes:
        """Return the bytes to send for `heartbeat`: a full beat if one is due, else a small one."""
        full = encode(heartbeat)
        said = _fields_of(full)
        due = self.is_full_due(heartbeat.incarnation, heartbeat.serial)
        small = b"" if due else _small(self._base, said)
        # A small beat that saves little is not worth its dependence on another one.
        if small and 2 * len(small) <= len(full):
            return small
        self._base = said
        self.full_next = False
        return full

    def is_full_due(self, incarnation: int, serial: int) -> bool:
        """Return whether the beat with these counts has to be full, whatever it contains."""
        if self.full_next or serial < FULL_AT_FIRST:
            return True
        base = self._base
        since = serial - int(str(base["serial"]))
        return incarnation != base["incarnation"] or not 0 < since < FULL_EVERY


def _small(base: dict[str, object], said: dict[str, object]) -> bytes:
    """Return the difference as a small beat; empty if it contains a field that needs a full
    beat.
    """
    changed = {name: said[name] for name in said.keys() - OF_EVERY_BEAT if said[name] != base[name]}
    if changed.keys() & RARE:
        return b""
    counts = {name: said[name] for name in OF_EVERY_BEAT}
    return pack({**counts, "base": base["serial"], "changed": changed})


def _fields_of(full: bytes) -> dict[str, object]:
    value = unpack(full, bytes_max=HEARTBEAT_BYTES_MAX)
    assert isinstance(value, dict)
    return value
