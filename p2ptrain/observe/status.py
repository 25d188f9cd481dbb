"""A node's status, which `p2ptrain status` and the demo show.

The node creates the status; other code only reads it. Its JSON form has a schema number, which
changes when the meaning of a field changes or a field is removed, but not when a field is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import duration

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member, as this node sees it. `health` is the failure detector's green, yellow or red."""

    peer: str
    peer_name: str
    role: str
    health: str
    state: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    heard_s_ago: float | None = None
    rtt_ms: float | None = None
    """Round-trip time in milliseconds, as measured here; None if this node is not connected to the
    member, or cannot measure it."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's progress in a run, and its health. Unknown values are empty strings or None."""

    peer: str
    peer_name: str
    state: str
    """The state in words, with numbers: `states.words`."""
    state_name: str
    run: str = ""
    run_name: str = ""
    outer_step: int = 0
    outer_steps: int = 0
    inner_step: int = 0
    inner_steps: int = 0
    ledger_height: int = 0
    ledger_head: str = ""
    state_digest: str = ""
    """The digest of θ and m at `outer_step`. Peers with the same ledger head have the same
    digest."""
    snapshot_step: int | None = None
    snapshots: tuple[Mapping[str, object], ...] = ()
    """The newest snapshots, newest first: `step`, `digest`, and `copies`, the number of members
    that are up and report it as one of the two newest that they wrote."""
    tokens: int = 0
    """The number of committed tokens that this node trained on."""
    tokens_total: int = 0
    tokens_per_s: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    """Loss of θ in nats per token, from what members report about parts of the held-out blocks."""
    validation: Mapping[str, object] = field(default_factory=dict)
    """The outer step of the θ that was validated, and the number of blocks that the loss covers."""
    validated: str = ""
    """Describes the field `validation`."""
    data_wait_s: float | None = None
    """Seconds that the last inner step waited for its data block."""
    learning_rate: float | None = None
    gradient_norm: float | None = None
    """Gradient norm of the last inner step, before clipping."""
    mfu: float | None = None
    """Model FLOPs utilisation of the last inner step, if the device's peak is known. See
    docs/metrics.md.
    """
    compute_utilisation: float | None = None
    """The fraction of the last outer step's time spent in inner steps."""
    learning: Mapping[str, float] = field(default_factory=dict)
    """Statistics of the newest reduce: the norms of this node's pseudo-gradient and of the mean,
    the cosine between the two, and the fraction of this node's pseudo-gradient that is lost by
    quantisation."""
    trainer: str = ""
    """Describes the trainer's device; empty until the first trainer is up."""
    inner_from: str = ""
    """Names the members whose inner optimizer states this node's trainer started with; empty if it
    started with its own."""
    ledger_origin: str = ""
    """Describes where this node's ledger starts; empty if it starts at genesis."""
    waits_for: str = ""
    """Describes what the ledger waits for next: for which peers, since when, until when, and what
    happens then."""
    waiting: Mapping[str, object] = field(default_factory=dict)
    """The facts in `waits_for`: `for`, `peers`, `names`, `since` and `until` in Unix seconds (null
    if there is no limit), `then`, and `suspect`."""
    branch: str = ""
    """Says that this node's ledger is, or soon will be, a branch of the run's; otherwise empty."""
    amended: str = ""
    """Describes the amendments that apply to the run now or soon; empty if there are none."""
    asking: tuple[str, ...] = ()
    """Some of the peers that wait for admission. Empty except on the organiser's node."""
    averaging: str = ""
    """Describes the order and schedule of the last reduce, and the reason if this node proposed
    them."""
    reach: str = ""
    """Says whether other peers can dial this node's data plane."""
    relaying: str = ""
    """Says how much this node relays for members that cannot connect to each other, and for whom;
    empty if it does not relay."""
    relayed: Mapping[str, object] = field(default_factory=dict)
    """The numbers in `relaying`, with the bytes that each peer sent."""
    role: str = ""
    """voter, learner, or empty if this node is not a member."""
    members: tuple[MemberStatus, ...] = ()
    addresses: tuple[str, ...] = ()
    congestion_control: str = ""
    """The congestion control algorithm of the data plane's sockets; empty if it is unknown."""
    congestion_refusal: str = ""
    """Why the congestion control is not BBR; empty if it is BBR."""
    limit_up_bytes_per_s: int | None = None
    limits: str = ""
    """Describes the limits that the node's owner has set, and where they come from."""
    schedule: str = ""
    """Describes when the owner lets the node train; empty if there is no restriction."""
    paused: Mapping[str, object] = field(default_factory=dict)
    """Why the node must not train now: `kind`, `reason`, and `until` in Unix seconds (null if that
    is not known). Empty if the node may train."""
    finishing: str = ""
    """Says that the node leaves after its next contribution, because its owner wants so."""
    stopped: str = ""
    """Why the organiser has ended the run before its last outer step."""
    bytes_today: Mapping[str, int] = field(default_factory=dict)
    """The bytes of bulk data since midnight, local time: `up` and `down`."""
    sending: str = ""
    """Describes the congestion control and the upload limit."""
    exchange: Mapping[str, object] = field(default_factory=dict)
    """The report of the newest successful reduce: bytes, seconds by phase, rates, CPU."""
    exchanged: str = ""
    """The report `exchange` in words."""
    uptime_s: float = 0.0
    warnings: tuple[str, ...] = ()
    """The words of `cautions`."""
    cautions: tuple[Caution, ...] = ()
    """Problems that do not stop the node."""

    def to_json(self) -> dict[str, object]:
        """Return plain values, with the schema number."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: object) -> NodeStatus:
        """Return the status that a node sent; unknown fields are ignored. Raises
        RemoteProtocolError: the schema is different, or a required field is missing.
        """
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise RemoteProtocolError(
                "the node and this command use different versions of the status"
            )
        known = {item.name: value[item.name] for item in fields(cls) if item.name in value}
        try:
            for name in ("addresses", "warnings", "asking", "snapshots"):
                known[name] = tuple(known.get(name, ()))
            for name, kind in (("members", MemberStatus), ("cautions", Caution)):
                items = known.get(name, ())
                known[name] = tuple(kind(**_known(kind, item)) for item in items)
            return cls(**known)
        except TypeError as exc:
            raise RemoteProtocolError(f"the node's status cannot be read: {exc}") from exc


def _known(kind: type[MemberStatus | Caution], value: object) -> dict[str, Any]:
    """Return the items of `value` that are fields of `kind`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"a {kind.__name__} is not an object")
    return {item.name: value[item.name] for item in fields(kind) if item.name in value}


def status_lines(status: NodeStatus) -> list[str]:
    """Return the status as lines of text for users."""
    lines = [f"{status.peer_name} (…{status.peer[-6:]}): {status.state}"]
    if status.run:
        lines.append(f"run       {status.run_name} ({status.run[:12]}…)")
    if status.ledger_head:
        lines.append(
            f"progress  outer step {status.outer_step} of {status.outer_steps}{_validation(status)}"
        )
        lines.append(
            f"tokens    {_millions(status.tokens)} of {_millions(status.tokens_total)} accepted"
        )
        lines.append(f"ledger    height {status.ledger_height}, head {status.ledger_head[:12]}…")
    told = (
        ("", status.ledger_origin),
        ("branch", status.branch),
        ("amended", status.amended),
        ("inner", _inner(status)),
        ("outer", _outer(status)),
        ("next", status.waits_for),
        ("validate", status.validated),
        ("finishing", status.finishing),
        ("schedule", status.schedule),
        ("limits", status.limits),
        ("trainer", status.trainer),
        ("optimizer", status.inner_from),
        ("sending", status.sending),
        ("exchange", status.exchanged),
        ("average", status.averaging),
        ("reach", status.reach),
        ("relaying", status.relaying),
    )
    lines += [f"{name:<10}{words}" for name, words in told if words]
    lines += [f"pending   {words}" for words in status.asking]
    lines += [f"warning   {warning}" for warning in status.warnings]
    lines += [_member_line(member) for member in status.members]
    lines.append(f"uptime    {duration(status.uptime_s)}")
    return lines


def _validation(status: NodeStatus) -> str:
    loss = status.validation_loss
    return "" if loss is None else f", validation loss {loss:.3f}"


def _inner(status: NodeStatus) -> str:
    """Describe the last inner step of this node's trainer."""
    told = (
        ("loss {:.3f}", status.loss),
        ("{:,.0f} tokens/s", status.tokens_per_s or None),
        ("{:.0%} of the device's peak (MFU)", status.mfu),
        ("waited {:,.1f} ms for data", _in_ms(status.data_wait_s)),
        ("learning rate {:.3g}", status.learning_rate),
        ("gradient norm {:.3g}", status.gradient_norm),
    )
    return ", ".join(words.format(value) for words, value in told if value is not None)


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _outer(status: NodeStatus) -> str:
    """Describe the last outer step: this node's contribution, and its fraction of computing."""
    told = (
        ("length of own change {:.3g}", status.learning.get("norm")),
        ("cosine {:.2f} to the mean of all", status.learning.get("cosine")),
        ("quantisation error {:.2%}", status.learning.get("quantisation_error")),
        ("computing {:.0%} of the time", status.compute_utilisation),
    )
    return ", ".join(words.format(value) for words, value in told if value is not None)


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 100_000 else str(tokens)


def _member_line(member: MemberStatus) -> str:
    who = f"{member.peer_name} (…{member.peer[-6:]})"
    heard = "" if member.heard_s_ago is None else f", heard {duration(member.heard_s_ago)} ago"
    rtt = "" if member.rtt_ms is None else f", RTT {member.rtt_ms:.0f} ms"
    return f"  {member.health:<7} {who:<28} {member.role:<8} {member.state}{heard}{rtt}"
