"""Heartbeats that contain only what changed since the last full one.

A *full beat* is an encoded `heartbeat`. A *small beat* refers to an earlier full beat from the same
start of the sender, called its base, and contains only the fields that differ from the base. It
also contains fields that became empty, so an omitted field always means "unchanged". The base and
the difference together form a full beat again, which the same decoder checks. So new heartbeat
fields do not need code here.

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
"""Number of beats from one full beat to the next: half a minute at one beat in two seconds. A
receiver that lost a full beat gets another one after that time at the latest."""

FULL_AT_FIRST = 5
"""Number of full beats after a start. The node is still connecting to its peers then. Thus the
first beat that a peer receives is most likely full."""

RARE = frozenset({"run", "mark", "trains", "endpoint", "addresses", "dialled", "dialable", "paths"})
"""Fields that cause a full beat when they change. They are large and rarely change, so it is
cheaper to send them once in a new base than in every small beat."""


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
        """Return whether `base` is the full beat that this beat refers to."""
        return (base.incarnation, base.serial) == (self.incarnation, self.base)


Beat = FullHeartbeat | HeartbeatDelta


def counts_of(beat: Beat) -> tuple[int, int]:
    """Return the incarnation that `beat` comes from, and the serial of `beat` in this
    incarnation."""
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
    """Return the full heartbeat that `small` and its base form together. Raises RemoteProtocolError
    if that heartbeat is not valid."""
    assert small.rests_on(base.heartbeat)
    counts = {"incarnation": small.incarnation, "serial": small.serial}
    return decode(pack(_fields_of(base.wire) | small.changed | counts))


@dataclass(slots=True)
class HeartbeatSender:
    """Encodes the beats that one node sends, in the order of their serials."""

    full_next: bool = True
    """Whether the next beat must be full, since a peer needs all fields. Set by `node/gossip`."""
    asked_s: float = -math.inf
    answered_s: float = -math.inf
    """When this node last sent an extra beat: `asked_s` to ask a peer for a full beat, `answered_s`
    because a peer asked for a full beat. Set by `node/gossip`."""
    _base: dict[str, object] = field(default_factory=dict)
    """The fields of the last full beat."""

    def encode_next(self, heartbeat: Heartbeat) -> bytes:
        """Return the bytes to send for `heartbeat`: a full beat if a full one is due or a small one
        would save little, otherwise a small beat."""
        full = encode(heartbeat)
        said = _fields_of(full)
        due = self.is_full_due(heartbeat.incarnation, heartbeat.serial)
        small = b"" if due else _small(self._base, said)
        # A receiver that lacks the base cannot decode it, so a small beat must save a lot.
        if small and 2 * len(small) <= len(full):
            return small
        self._base = said
        self.full_next = False
        return full

    def is_full_due(self, incarnation: int, serial: int) -> bool:
        """Return whether the beat with this incarnation and serial must be full, even if no field
        has changed."""
        if self.full_next or serial < FULL_AT_FIRST:
            return True
        base = self._base
        since = serial - int(str(base["serial"]))
        return incarnation != base["incarnation"] or not 0 < since < FULL_EVERY


def _small(base: dict[str, object], said: dict[str, object]) -> bytes:
    """Return the small beat for the fields `said`; b"" if a field changed that needs a full
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
