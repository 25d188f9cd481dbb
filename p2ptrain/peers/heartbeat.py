"""The heartbeat: what a node reports to everybody every two seconds, and immediately when something
changes.

A heartbeat is a complete report of what the node has done, has, and needs. Each heartbeat replaces
the previous one. So the next heartbeat makes up for a lost one, and acknowledgements are not
needed. Gossip signs heartbeats with the node's key. This module defines the fields and their
bounds. It does not know how heartbeats are sent (`heartbeat_delta`) or what receivers do with them
(`node/gossip/gossip.py`). θ is the run's agreed parameters, m the outer momentum.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.identity import is_peer_id
from p2ptrain.ids import Digest, PeerId, RunId, is_digest
from p2ptrain.ledger.chain.values import LineId
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.peers.identity_messages import SIGNATURE_BYTES
from p2ptrain.peers.incarnations import INCARNATION_MAX
from p2ptrain.peers.path_table import TOLD_MAX, Path
from p2ptrain.peers.series.step_report import StepReport, encode_report, without_report

HEARTBEAT_BYTES_MAX = 8192
"""Maximum size of a heartbeat in bytes. A typical heartbeat takes 1.1 kB: a certificate of 500
bytes, a few addresses, and one or two reports."""

STATE_CHARACTERS_MAX = 160
ADDRESSES_MAX = 8
ADDRESS_CHARACTERS_MAX = 200
SUSPECTS_MAX = 64
LACKS_MAX = 16
"""Maximum number of peers in `Heartbeat.lacks`; the next heartbeat names the others. Each peer id
takes 54 bytes."""

COUNT_MAX = 1 << 53

_CLAIMED_ITEMS = 6
"""Number of items of a report that a peer is ready, if the report has a claim."""

_RELAYS = "/p2ptrain-relays/"
_BY_IPV6 = "/p2ptrain-dialable/6"
_CHANGES_PORTS = "/p2ptrain-ports/changing"

SHARE_BLOCKS_MAX = 4096
"""Maximum number of held-out blocks in one member's share of a validation."""

LOSS_MAX_NATS = 1000.0
"""Maximum mean loss per token, in nats. With the largest vocabulary, a model that guesses at random
has a loss of 14 nats. The limit leaves room for a model that is confident and wrong, and keeps one
report from outweighing all others."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """The sender has finished the inner steps of outer step `step`. It trained on `blocks` data
    blocks of its lease, which contain `tokens` tokens. In a run with claims, `claim` is its signed
    statement about its contribution."""

    step: int
    tokens: int
    blocks: int
    claim: ClaimStatement | None = None


@dataclass(frozen=True, slots=True)
class ReduceReport:
    """How an attempt to average ended for the sender: with the digest of the update, or with the
    peers that it suspects of having caused the failure.

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
    """One report of a node. `incarnation` orders the starts of the sender (`incarnations`), and
    `serial` counts the heartbeats since that start. `mark` is the sender's signature over the
    incarnation. Members show the newest mark to any process with the sender's key, so that the
    process learns the newest incarnation."""

    run: RunId
    incarnation: int
    serial: int
    state: str
    trains: bool
    joining: bool
    leaving: bool
    height: int
    line: LineId
    """The part of the ledger, decided by one set of voters, to which `height` and `head` belong
    (see the ledger's SPEC.md)."""
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
    """Peers that should send a full heartbeat next, since the sender could not decode their small
    ones (see `heartbeat_delta`)."""
    dialled: bool = False
    """Whether a peer has connected to the sender's data plane since the sender started."""
    dialable: bool = True
    """False if no peer has connected for a long time, although peers try. Then the sender has to
    dial them."""
    paths: tuple[tuple[PeerId, Path], ...] = ()
    """A few of the sender's own paths. Each heartbeat reports different ones; see `path_table`."""
    validation: ValidationReport | None = None
    """The sender's newest report on the loss of θ."""
    snapshot: SnapshotReport | None = None
    """The newest snapshot that the sender wrote."""
    mark: bytes = b""
    relays: int = 0
    """How many edges the sender offers to relay, free or in use; see `dataplane/relaying`. On the
    wire, it is a text among the addresses: older versions take it for a malformed address and skip
    it, while they would refuse an unknown field."""
    dialable_by_ipv6: bool = False
    """Whether other sites have lately connected to the sender's data plane by IPv6. It is a text
    among the addresses too. `dialable` is about IPv4, unless all members see the sender at IPv6
    addresses."""
    changes_ports: bool = False
    """Whether the sender's router shows each peer another port (a symmetric NAT), as far as the
    sender knows. It is a text among the addresses too."""
    step_report: StepReport | None = None
    """The sender's report on the newest outer step that it has finished. It is a text among the
    addresses too."""

    def follows(self, earlier: Heartbeat | None) -> bool:
        """Return whether this heartbeat is newer than `earlier`, the last one that was accepted."""
        if earlier is None:
            return True
        return (self.incarnation, self.serial) > (earlier.incarnation, earlier.serial)


def encode(heartbeat: Heartbeat) -> bytes:
    """Return the canonical bytes of `heartbeat`. Texts and lists are cut to their limits."""
    wire: dict[str, Any] = {
        each.name: getattr(heartbeat, each.name) for each in dataclass_fields(heartbeat)
    }
    wire["state"] = heartbeat.state[:STATE_CHARACTERS_MAX]
    told = [f"{_RELAYS}{heartbeat.relays}"] if heartbeat.relays else []
    told += [_BY_IPV6] if heartbeat.dialable_by_ipv6 else []
    told += [_CHANGES_PORTS] if heartbeat.changes_ports else []
    if heartbeat.step_report is not None:
        told.append(encode_report(heartbeat.step_report))
    wire["addresses"] = (*heartbeat.addresses[: ADDRESSES_MAX - len(told)], *told)
    for name in ("relays", "dialable_by_ipv6", "changes_ports", "step_report"):
        del wire[name]
    wire["lacks"] = heartbeat.lacks[:LACKS_MAX]
    wire["paths"] = [[peer, path.rate, path.delay_ms] for peer, path in heartbeat.paths]
    if heartbeat.reduce is not None:
        few = heartbeat.reduce.suspects[:SUSPECTS_MAX]
        wire["reduce"] = replace(heartbeat.reduce, suspects=few)
    for name in ("reduce", "validation", "snapshot"):
        if wire[name] is not None:
            wire[name] = astuple(wire[name])
    wire["ready"] = _ready_plain(heartbeat.ready)
    return pack(wire)


def decode(data: bytes) -> Heartbeat:
    """Decode a heartbeat, checking every field against its type and bound.

    Raises:
        RemoteProtocolError: the heartbeat is malformed or a field is out of bounds.
    """
    counts = ("serial", "height", "step", "inner_step", "inner_steps", "tokens_per_s")
    maybe_list = (list, type(None))
    wire: dict[str, Any] = {
        **fields(
            unpack(data, bytes_max=HEARTBEAT_BYTES_MAX),
            **dict.fromkeys(("run", "state", "line", "head"), str),
            **dict.fromkeys(("trains", "joining", "leaving", "dialled", "dialable"), bool),
            **dict.fromkeys(("incarnation", *counts), int),
            **dict.fromkeys(("endpoint", "mark"), bytes),
            **dict.fromkeys(("addresses", "lacks", "paths"), list),
            **dict.fromkeys(("ready", "reduce", "validation", "snapshot"), maybe_list),
        )
    }
    if not all(is_digest(wire[name]) for name in ("run", "line", "head")):
        raise RemoteProtocolError("a heartbeat's run, line or head is not a digest")
    if len(wire["mark"]) not in (0, SIGNATURE_BYTES):
        raise RemoteProtocolError(f"a heartbeat's mark must have {SIGNATURE_BYTES} bytes")
    wire |= {name: _count(wire[name]) for name in counts}
    wire["incarnation"] = _count(wire["incarnation"], INCARNATION_MAX)
    wire["state"] = _printable(wire["state"][:STATE_CHARACTERS_MAX])
    addresses, wire["relays"] = _without_relays(_addresses(wire["addresses"]))
    wire["dialable_by_ipv6"] = _BY_IPV6 in addresses
    wire["changes_ports"] = _CHANGES_PORTS in addresses
    addresses = tuple(each for each in addresses if each not in (_BY_IPV6, _CHANGES_PORTS))
    wire["addresses"], wire["step_report"] = without_report(addresses)
    wire["ready"] = _ready(wire["ready"])
    wire["reduce"] = _reduce(wire["reduce"])
    wire["lacks"] = _peers(wire["lacks"], LACKS_MAX)
    wire["paths"] = _paths(wire["paths"])
    wire["validation"] = _validation(wire["validation"])
    wire["snapshot"] = _snapshot(wire["snapshot"])
    return Heartbeat(**wire)


def _count(value: object, most: int = COUNT_MAX) -> int:
    return count(value, most, "a heartbeat")


def _printable(text: str) -> str:
    """Replace the control characters in a peer's text, because they could alter a user's
    terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _addresses(value: list[object]) -> tuple[str, ...]:
    if len(value) > ADDRESSES_MAX or not all(
        isinstance(item, str) and len(item) <= ADDRESS_CHARACTERS_MAX and item.isprintable()
        for item in value
    ):
        raise RemoteProtocolError("a heartbeat has too many addresses, or an invalid one")
    return tuple(map(str, value))


def _without_relays(texts: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Separate the addresses from the number of edges that the sender offers to relay."""
    offers = [each.removeprefix(_RELAYS) for each in texts if each.startswith(_RELAYS)]
    valid = [int(each) for each in offers if each.isascii() and each.isdigit() and len(each) < 4]
    return tuple(each for each in texts if not each.startswith(_RELAYS)), max(valid, default=0)


def _ready_plain(ready: ReadyReport | None) -> list[object] | None:
    """Return the report as a list. Without a claim, it is the same as in earlier versions."""
    if ready is None:
        return None
    said, numbers = ready.claim, [ready.step, ready.tokens, ready.blocks]
    return [*numbers, *([] if said is None else [said.serial, said.claim, said.signature])]


def _ready(value: object) -> ReadyReport | None:
    if value is None:
        return None
    has_claim = isinstance(value, list) and len(value) == _CLAIMED_ITEMS
    items = _items(value, _CLAIMED_ITEMS if has_claim else _CLAIMED_ITEMS - 3)
    step, tokens, blocks = map(_count, items[:3])
    if not has_claim:
        return ReadyReport(step, tokens, blocks)
    return ReadyReport(step, tokens, blocks, _claim(step, tokens, blocks, *items[3:]))


def _claim(
    step: int, tokens: int, blocks: int, serial: object, claim: Any, signature: object
) -> ClaimStatement:
    if not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES:
        raise RemoteProtocolError(f"a claim's signature must have {SIGNATURE_BYTES} bytes")
    try:
        return ClaimStatement(step, _count(serial), tokens, blocks, claim, signature)
    except ValueError as exc:
        raise RemoteProtocolError(f"a heartbeat's claim is invalid: {exc}") from exc


def _reduce(value: object) -> ReduceReport | None:
    if value is None:
        return None
    step, attempt, update, suspects = _items(value, 4)
    if update is not None and not is_digest(update):
        raise RemoteProtocolError("a heartbeat's update is not a digest")
    # Checked before a ReduceReport is made, which would report an invalid peer id as our own error.
    named = _peers(suspects, SUSPECTS_MAX)
    update = None if update is None else Digest(update)
    return ReduceReport(_count(step), _count(attempt), update, named)


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


def _items(value: object, count: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise RemoteProtocolError(f"a heartbeat's report does not have {count} items")
    return value
