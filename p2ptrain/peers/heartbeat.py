"""The heartbeat: what a node reports to everybody every two seconds, and immediately when something
changes.

A heartbeat is a complete report: how far the node is, what it has, what it wants. Each one replaces
the previous one. So the next heartbeat makes up for a lost one, and acknowledgements are not
needed. Gossip signs it with the node's key. This module defines the fields and their bounds. It
does not know how they are sent (`heartbeat_delta`) or what receivers do with them
(`node/gossip/gossip.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.peers.identity_messages import SIGNATURE_BYTES
from p2ptrain.peers.incarnations import INCARNATION_MAX
from p2ptrain.peers.path_table import TOLD_MAX, Path

HEARTBEAT_BYTES_MAX = 8192
"""Maximum size of a heartbeat in bytes. The heartbeats that a node sends have about 1.1 kB: a
certificate of 500 bytes, a few addresses, one or two reports."""

STATE_CHARACTERS_MAX = 160
ADDRESSES_MAX = 8
ADDRESS_CHARACTERS_MAX = 200
SUSPECTS_MAX = 64
LACKS_MAX = 16
"""Maximum number of peers that one heartbeat asks for a full beat. The next heartbeat asks the
rest. Each peer id takes 54 bytes."""

COUNT_MAX = 1 << 53

SHARE_BLOCKS_MAX = 4096
"""Maximum number of held-out blocks in one member's share of a validation."""

LOSS_MAX_NATS = 1000.0
"""Maximum mean loss per token, in nats. A model that guesses has 14 nats with the largest
vocabulary. The limit leaves room for a model that is confident and wrong, and keeps one report from
outweighing all others."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The sender finished its inner phase. It trained `blocks` of its lease, `tokens` in total."""

    step: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class ReduceReport:
    """How the sender's attempt ended: with the update's digest, or with the peers that it suspects.

    Raises:
        LocalProtocolError: a suspect is not a valid peer id. Other nodes could not decode a
            heartbeat with it, so they would stop hearing us.
    """

    step: int
    attempt: int
    update: Digest | None
    suspects: tuple[PeerId, ...]

    def __post_init__(self) -> None:
        if not all(map(is_peer_id, self.suspects)):
            raise LocalProtocolError(f"a suspect is not a peer id: {self.suspects}")


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The sender wrote this snapshot of θ and m before outer step `step`."""

    step: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The loss of the θ of outer step `step`, which the sender measured on its share of the
    held-out blocks: from `first` up to but not including `stop`. `loss_sum` is the total loss of
    `tokens` tokens, in nats.

    Raises:
        RemoteProtocolError: the loss or the size of the share is out of range.
    """

    step: int
    first: int
    stop: int
    tokens: int
    loss_sum: float

    def __post_init__(self) -> None:
        counts = (self.step, self.first, self.stop, self.tokens)
        if not all(0 <= each <= COUNT_MAX for each in counts) or self.tokens == 0:
            raise RemoteProtocolError("a validation report has a count that is out of range")
        if not 0 < self.stop - self.first <= SHARE_BLOCKS_MAX:
            raise RemoteProtocolError("a validation report has an invalid range of blocks")
        # This form of the condition also refuses NaN.
        if not 0 <= self.loss_sum <= LOSS_MAX_NATS * self.tokens:
            raise RemoteProtocolError("a validation report's loss is out of range")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One report of a node. `incarnation` orders the starts of its sender (`incarnations`), and
    `serial` counts the heartbeats within it. `mark` is the sender's signature that vouches for the
    incarnation. Members send it back to a process of that identity that needs to know its newest
    incarnation."""

    run: RunId
    incarnation: int
    serial: int
    state: str
    trains: bool
    joining: bool
    leaving: bool
    height: int
    line: LineId
    """The line of the run that `height` counts on; see the ledger's SPEC.md."""
    head: Digest
    step: int
    inner_step: int
    inner_steps: int
    tokens_per_s: int
    endpoint: bytes
    addresses: tuple[str, ...]
    ready: ReadyReport | None
    reduce: ReduceReport | None
    lacks: tuple[PeerId, ...] = ()
    """Peers that should send a full beat next, since their small beats could not be decoded (see
    `heartbeat_delta`)."""
    dialled: bool = False
    """Whether a peer has connected to the sender's data plane since the sender started."""
    dialable: bool = True
    """False if no peer has connected for long, although peers try: the sender has to dial them."""
    paths: tuple[tuple[PeerId, Path], ...] = ()
    """A few of the sender's own paths. Each heartbeat reports different ones; see `path_table`."""
    validation: ValidationReport | None = None
    """The sender's newest report on the loss of θ."""
    snapshot: SnapshotReport | None = None
    """The newest snapshot that the sender wrote."""
    mark: bytes = b""

    def follows(self, earlier: Heartbeat | None) -> bool:
        """Return whether this heartbeat is newer than `earlier`, the last one that was accepted."""
        if earlier is None:
            return True
        return (self.incarnation, self.serial) > (earlier.incarnation, earlier.serial)


def encode(heartbeat: Heartbeat) -> bytes:
    ready, reduce, validation = heartbeat.ready, heartbeat.reduce, heartbeat.validation
    snapshot = heartbeat.snapshot
    return pack(
        {
            "run": heartbeat.run,
            "incarnation": heartbeat.incarnation,
            "serial": heartbeat.serial,
            "state": heartbeat.state[:STATE_CHARACTERS_MAX],
            "trains": heartbeat.trains,
            "joining": heartbeat.joining,
            "leaving": heartbeat.leaving,
            "height": heartbeat.height,
            "line": heartbeat.line,
            "head": heartbeat.head,
            "step": heartbeat.step,
            "inner_step": heartbeat.inner_step,
            "inner_steps": heartbeat.inner_steps,
            "tokens_per_s": heartbeat.tokens_per_s,
            "endpoint": heartbeat.endpoint,
            "addresses": list(heartbeat.addresses[:ADDRESSES_MAX]),
            "ready": None if ready is None else [ready.step, ready.tokens, ready.blocks],
            "reduce": None
            if reduce is None
            else [
                reduce.step,
                reduce.attempt,
                reduce.update,
                list(reduce.suspects[:SUSPECTS_MAX]),
            ],
            "lacks": list(heartbeat.lacks[:LACKS_MAX]),
            "dialled": heartbeat.dialled,
            "dialable": heartbeat.dialable,
            "paths": [[peer, path.rate, path.delay_ms] for peer, path in heartbeat.paths],
            "validation": None if validation is None else list(astuple(validation)),
            "snapshot": None if snapshot is None else [snapshot.step, snapshot.digest],
            "mark": heartbeat.mark,
        }
    )


def decode(data: bytes) -> Heartbeat:
    """Decode a heartbeat, checking every field against its type and bound.

    Raises:
        RemoteProtocolError: the heartbeat is malformed or a field is out of bounds.
    """
    maybe_list = (list, type(None))
    wire = fields(
        unpack(data, bytes_max=HEARTBEAT_BYTES_MAX),
        **dict.fromkeys(("run", "state", "line", "head"), str),
        **dict.fromkeys(("trains", "joining", "leaving", "dialled", "dialable"), bool),
        **dict.fromkeys(("incarnation", "serial", "height", "step"), int),
        **dict.fromkeys(("inner_step", "inner_steps", "tokens_per_s"), int),
        endpoint=bytes,
        mark=bytes,
        **dict.fromkeys(("addresses", "lacks", "paths"), list),
        **dict.fromkeys(("ready", "reduce", "validation", "snapshot"), maybe_list),
    )
    run, line, head, state = wire["run"], wire["line"], wire["head"], wire["state"]
    if not (is_digest(run) and is_digest(line) and is_digest(head)):
        raise RemoteProtocolError("a heartbeat's run, line or head is not a digest")
    assert isinstance(run, str)
    assert isinstance(line, str)
    assert isinstance(head, str)
    assert isinstance(state, str)
    return Heartbeat(
        run=RunId(run),
        incarnation=_count(wire["incarnation"], INCARNATION_MAX),
        serial=_count(wire["serial"]),
        state=_printable(state[:STATE_CHARACTERS_MAX]),
        trains=wire["trains"] is True,
        joining=wire["joining"] is True,
        leaving=wire["leaving"] is True,
        height=_count(wire["height"]),
        line=Digest(line),
        head=Digest(head),
        step=_count(wire["step"]),
        inner_step=_count(wire["inner_step"]),
        inner_steps=_count(wire["inner_steps"]),
        tokens_per_s=_count(wire["tokens_per_s"]),
        endpoint=_bytes(wire["endpoint"]),
        addresses=_addresses(wire["addresses"]),
        ready=_ready(wire["ready"]),
        reduce=_reduce(wire["reduce"]),
        lacks=_peers(wire["lacks"], LACKS_MAX),
        dialled=wire["dialled"] is True,
        dialable=wire["dialable"] is True,
        paths=_paths(wire["paths"]),
        validation=_validation(wire["validation"]),
        snapshot=_snapshot(wire["snapshot"]),
        mark=_mark(wire["mark"]),
    )


def _count(value: object, most: int = COUNT_MAX) -> int:
    return count(value, most, "a heartbeat")


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


def _mark(value: object) -> bytes:
    mark = _bytes(value)
    if len(mark) not in (0, SIGNATURE_BYTES):
        raise RemoteProtocolError(f"a heartbeat's mark must have {SIGNATURE_BYTES} bytes")
    return mark


def _printable(text: str) -> str:
    """Replace the control characters in a peer's text: they could alter the user's terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _addresses(value: object) -> tuple[str, ...]:
    assert isinstance(value, list)
    if len(value) > ADDRESSES_MAX or not all(
        isinstance(item, str) and len(item) <= ADDRESS_CHARACTERS_MAX and item.isprintable()
        for item in value
    ):
        raise RemoteProtocolError("a heartbeat has too many addresses, or an invalid one")
    return tuple(value)


def _ready(value: object) -> ReadyReport | None:
    if value is None:
        return None
    step, tokens, blocks = _items(value, 3)
    return ReadyReport(_count(step), _count(tokens), _count(blocks))


def _reduce(value: object) -> ReduceReport | None:
    if value is None:
        return None
    step, attempt, update, suspects = _items(value, 4)
    if update is not None and not is_digest(update):
        raise RemoteProtocolError("a heartbeat's update is not a digest")
    assert update is None or isinstance(update, str)
    named = _peers(suspects, SUSPECTS_MAX)  # Checked first, so that the error is the sender's.
    return ReduceReport(
        _count(step), _count(attempt), None if update is None else Digest(update), named
    )


def _validation(value: object) -> ValidationReport | None:
    if value is None:
        return None
    step, first, stop, tokens, loss_sum = _items(value, 5)
    if type(loss_sum) is not float:
        raise RemoteProtocolError("a heartbeat's loss is not a number")
    return ValidationReport(_count(step), _count(first), _count(stop), _count(tokens), loss_sum)


def _snapshot(value: object) -> SnapshotReport | None:
    if value is None:
        return None
    step, digest = _items(value, 2)
    if not is_digest(digest):
        raise RemoteProtocolError("a heartbeat's snapshot is not a digest")
    assert isinstance(digest, str)
    return SnapshotReport(_count(step), Digest(digest))


def _paths(value: object) -> tuple[tuple[PeerId, Path], ...]:
    if not isinstance(value, list) or len(value) > TOLD_MAX:
        raise RemoteProtocolError(f"a heartbeat reports more than {TOLD_MAX} paths")
    told = [_items(item, 3) for item in value]
    peers = _peers([peer for peer, _, _ in told], TOLD_MAX)
    if len(set(peers)) < len(peers):
        raise RemoteProtocolError("a heartbeat reports a path twice")
    paths = [Path(_count(rate), _count(delay_ms)) for _, rate, delay_ms in told]
    return tuple(zip(peers, paths, strict=True))


def _peers(value: object, most: int) -> tuple[PeerId, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise RemoteProtocolError(f"a heartbeat must name peers in a list of at most {most}")
    if not all(is_peer_id(peer) for peer in value):
        raise RemoteProtocolError("a heartbeat names an invalid peer id")
    return tuple(PeerId(peer) for peer in value)


def _items(value: object, count: int) -> Sequence[object]:
    if not isinstance(value, list) or len(value) != count:
        raise RemoteProtocolError(f"a heartbeat's report does not have {count} items")
    return value
