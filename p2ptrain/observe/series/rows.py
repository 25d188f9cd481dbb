"""The rows of a series, and the tables that hold them.

A row's fields are the columns of its table, in order. None stands for NULL: unknown, or not
reported. Every value is bounded, so that no peer's report can make the file large or break a chart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from p2ptrain.errors import LocalProtocolError

SCHEMA = "1"
"""Version of the tables. It changes when the meaning of a column changes or a column is removed."""

COUNT_MAX = 1 << 53
NUMBER_MAX = 1e30
WORD_CHARACTERS_MAX = 64
"""Maximum length of a peer id, a device class, a version, a path or a kind."""

TEXT_CHARACTERS_MAX = 4000
"""Maximum length of a sample or an event."""

KINDS = frozenset(
    "join leave lost amendment skip retry branch heal stall snapshot validation pause resume "
    "warning end".split()
)
"""The kinds of events. `stall` is a wait that lasts longer than usual."""


@dataclass(frozen=True, slots=True)
class _Row:
    table: ClassVar[str]
    key: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            longest = TEXT_CHARACTERS_MAX if each.name == "text" else WORD_CHARACTERS_MAX
            if value is not None and not _is_bounded(value, longest):
                raise LocalProtocolError(f"{self.table}.{each.name} is out of bounds")


def _is_bounded(value: object, longest: int) -> bool:
    match value:
        case bool() | int():
            return 0 <= value <= COUNT_MAX
        case float():
            return math.isfinite(value) and abs(value) <= NUMBER_MAX
        case str():
            return len(value) <= longest
        case _:
            return False


@dataclass(frozen=True, slots=True)
class StepRow(_Row):
    """One outer step, or several old ones that were merged into one row. `step` is the number of
    outer steps that θ contains at its end, as in the node's log.

    `tokens` and `tokens_total` are certified by the ledger. `loss` and `gradient_norm` are means of
    what the participants reported, weighted by tokens. The last three columns before `covers` are
    this node's own.
    """

    table = "steps"
    key = ("step",)

    step: int
    time: float | None = None
    """Unix seconds at which this node learned that the step had ended. If members told it: the
    time at which the teller learned that. None for a step that this node only replayed."""
    attempt: int | None = None
    skipped: int | None = None
    members: int | None = None
    participants: int | None = None
    tokens: int | None = None
    tokens_total: int | None = None
    loss: float | None = None
    held_out: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    exchange_ms: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    covers: int = 1
    """Number of outer steps that the row stands for: this one and those before it."""
    told_by: str | None = None
    """The member that told this node the row; None if the node observed the step itself."""


@dataclass(frozen=True, slots=True)
class PeerStepRow(_Row):
    """One peer in one outer step, or in the outer steps that the row in `steps` covers.

    `tokens` is certified by the ledger: 0 if the peer did not take part. All columns from
    `train_ms` to `version` are as the peer reported them, and None if it reported nothing.
    """

    table = "peer_steps"
    key = ("step", "peer")

    step: int
    peer: str
    tokens: int | None = None
    train_ms: int | None = None
    data_wait_ms: int | None = None
    wait_ms: int | None = None
    exchange_ms: int | None = None
    fetch_ms: int | None = None
    apply_ms: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    cosine: float | None = None
    quantisation_error: float | None = None
    mfu: float | None = None
    device: str | None = None
    version: str | None = None
    contributed: int | None = None
    """Number of outer steps in which the peer's tokens were committed: 0 or 1, and more in a merged
    row. Certified, like `tokens`."""
    path: str | None = None
    """How this node was connected to the peer: "direct", "punched", "relayed" or ""."""
    told_by: str | None = None
    """The member that told this node the reported columns; None if the peer itself did."""


@dataclass(frozen=True, slots=True)
class EventRow(_Row):
    """Something worth telling, in one plain sentence. `peer` is "" if no single peer is meant."""

    table = "events"
    key = ()

    time: float
    step: int
    kind: str
    peer: str
    text: str

    def __post_init__(self) -> None:
        _Row.__post_init__(self)
        if self.kind not in KINDS:
            raise LocalProtocolError(f"{self.kind} is not a kind of event")


@dataclass(frozen=True, slots=True)
class SampleRow(_Row):
    """Text that `peer` generated from θ of outer step `step` for one of the run's prompts."""

    table = "samples"
    key = ("step", "prompt")

    step: int
    prompt: int
    peer: str
    text: str


@dataclass(frozen=True, slots=True)
class ToldEventRow(_Row):
    """An event that the member `told_by` has told this node. `told.as_event` makes a sentence."""

    table = "told_events"
    key = ("step", "kind", "peer")

    step: int
    kind: str
    peer: str
    time: float
    told_by: str


@dataclass(frozen=True, slots=True)
class ToldSampleRow(_Row):
    """A sample that the member `told_by` has told this node."""

    table = "told_samples"
    key = ("step", "prompt")

    step: int
    prompt: int
    peer: str
    text: str
    told_by: str


OwnRow = StepRow | PeerStepRow | EventRow | SampleRow
ToldRow = ToldEventRow | ToldSampleRow
Row = OwnRow | ToldRow
TABLES: tuple[type[OwnRow], ...] = get_args(OwnRow)
"""The tables that every series has. Those of `ToldRow` are made when a node opens its series."""


def columns(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


SUMMED = {
    "steps": {"tokens", "exchange_ms", "bytes_up", "bytes_down"},
    "peer_steps": {
        *("tokens", "train_ms", "data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms"),
        *("apply_ms", "bytes_up", "bytes_down", "contributed"),
    },
}
"""Columns whose values are added when rows are merged, so that sums over a table stay exact."""

AVERAGED = {
    "steps": {"loss", "gradient_norm"},
    "peer_steps": {"loss", "gradient_norm", "cosine", "quantisation_error", "mfu"},
}
"""Columns of which merged rows have the mean. Of all other columns, they have the newest value."""
