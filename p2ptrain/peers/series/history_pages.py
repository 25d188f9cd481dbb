"""Pages of the run's history that a member tells a newcomer, signed by that member.

A page contains rows of outer steps and of the peers in them. All of it is the word of the member
that signs it: its own observations, and what other peers have reported to it. The reader replaces
the tokens by those of its own ledger. A page is bounded in rows and bytes, and each of its values
in the same way as in a report. This module does not know who may ask or whom to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.observe.series.rows import PeerStepRow, StepRow
from p2ptrain.peers.series.signed_page import PageKind
from p2ptrain.peers.series.step_report import BOUNDS, DEVICES, STEP_MAX, VERSION_CHARACTERS_MAX

REQUEST_BYTES_MAX = 256
STEPS_MAX = 64
ROWS_MAX = 4096
"""Maximum number of rows of peers in a page: 64 outer steps of 64 peers."""

PAGE_BYTES_MAX = 5 << 17
"""Maximum size of a page in bytes. A row of a peer takes at most 132 bytes, so 4,096 rows fit."""

COVERS_MAX = 1 << 20
NAMES_MAX = 1024

KIND = PageKind(
    "page of history",
    b"p2ptrain history page 1\0",
    PAGE_BYTES_MAX,
    {"names": NAMES_MAX, "steps": STEPS_MAX, "peers": ROWS_MAX},
)

STEP_COLUMNS = (
    *("step", "time", "attempt", "skipped", "members", "participants", "tokens", "tokens_total"),
    *("loss", "held_out", "learning_rate", "gradient_norm", "covers"),
)
PEER_COLUMNS = (
    *("tokens", "contributed", "train_ms", "data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms"),
    *("apply_ms", "bytes_up", "bytes_down", "loss", "gradient_norm", "cosine"),
    *("quantisation_error", "mfu", "device", "version"),
)
"""The columns that a page contains. The others are the teller's own: its exchange, its bytes, its
paths to other peers."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """Asks for the newest rows among the outer steps from `first` to `last`, both included."""

    run: RunId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Rows of outer steps, oldest first, and of the peers in them. Empty if the teller has none."""

    steps: tuple[StepRow, ...] = ()
    peers: tuple[PeerStepRow, ...] = ()


def encode_request(request: HistoryRequest) -> bytes:
    return pack({"run": request.run, "first": request.first, "last": request.last})


def decode_request(data: bytes) -> HistoryRequest:
    """Decode a request. Raises RemoteProtocolError: it is malformed."""
    wire = fields(unpack(data, bytes_max=REQUEST_BYTES_MAX), run=str, first=int, last=int)
    if not is_digest(wire["run"]):
        raise RemoteProtocolError("a request for history does not name a run")
    first, last = (
        count(wire[name], STEP_MAX, "a request for history") for name in ("first", "last")
    )
    return HistoryRequest(RunId(str(wire["run"])), first, last)


def encode_page(page: HistoryPage, run: RunId, teller: Identity) -> bytes:
    """Return the page with the signature of `teller`."""
    return KIND.signed(encode_body(page, run), teller)


def encode_body(page: HistoryPage, run: RunId) -> bytes:
    names = sorted({row.peer for row in page.peers})
    places = {name: place for place, name in enumerate(names)}
    return pack(
        {
            "run": run,
            "names": names,
            "steps": [_values(row, STEP_COLUMNS) for row in page.steps],
            "peers": [
                [row.step, places[row.peer], *_values(row, PEER_COLUMNS)] for row in page.peers
            ],
        }
    )


def _values(row: StepRow | PeerStepRow, columns: Sequence[str]) -> list[object]:
    return [getattr(row, column) for column in columns]


def decode_page(data: bytes, run: RunId, teller: PeerId) -> HistoryPage:
    """Decode a page that `teller` has signed. Its rows name `teller` in `told_by`.

    Raises RemoteProtocolError: the page is malformed, a value is out of bounds, the signature is
        wrong, or the page belongs to another run."""
    said = KIND.lists_in(data, run, teller)
    steps = tuple(_step_row(values, teller) for values in said["steps"])
    peers = tuple(_peer_row(values, said["names"], teller) for values in said["peers"])
    if any(row.step - row.covers < before.step for before, row in pairwise(steps)):
        raise RemoteProtocolError("a page of history is not in order")
    if not {row.step for row in peers} <= {row.step for row in steps}:
        raise RemoteProtocolError("a page of history has a row of a peer without its outer step")
    return HistoryPage(steps, peers)


def _step_row(values: object, teller: PeerId) -> StepRow:
    told = _named(values, STEP_COLUMNS)
    _check_types(told, floats={"time", "loss", "held_out", "learning_rate", "gradient_norm"})
    count(told["step"], STEP_MAX, "a page of history")
    if not 1 <= count(told["covers"], COVERS_MAX, "a page of history") <= told["step"]:
        raise RemoteProtocolError("a row of history covers an impossible number of steps")
    _check_bounds(told)
    _check_bounds({"loss": told["held_out"]})
    try:
        return StepRow(**told, told_by=teller)
    except LocalProtocolError as exc:
        raise RemoteProtocolError(f"a row of history is out of bounds: {exc.what}") from exc


def _peer_row(values: object, names: Sequence[str], teller: PeerId) -> PeerStepRow:
    told = _named(values, ("step", "place", *PEER_COLUMNS))
    peer = KIND.peer_at(told.pop("place"), names)
    device, version = told.pop("device"), told.pop("version")
    _check_types(told, floats=set(BOUNDS))
    count(told["step"], STEP_MAX, "a page of history")
    _check_bounds(told)
    if device not in (None, *DEVICES):
        raise RemoteProtocolError("a row of history has an unknown device class")
    if version is not None and not _is_short_text(version):
        raise RemoteProtocolError("a row of history has an invalid version")
    words = {"peer": peer, "device": device, "version": version, "told_by": teller}
    try:
        return PeerStepRow(**told, **words)
    except LocalProtocolError as exc:
        raise RemoteProtocolError(f"a row of history is out of bounds: {exc.what}") from exc


def _named(values: object, columns: Sequence[str]) -> dict[str, Any]:
    if not isinstance(values, list) or len(values) != len(columns):
        raise RemoteProtocolError("a row of history has the wrong number of values")
    return dict(zip(columns, values, strict=True))


def _check_types(told: dict[str, Any], floats: set[str]) -> None:
    for name, value in told.items():
        if value is not None and type(value) is not (float if name in floats else int):
            raise RemoteProtocolError(f"a row of history has a wrong type in {name}")


def _check_bounds(told: dict[str, Any]) -> None:
    for name, (least, most) in BOUNDS.items():
        value = told.get(name)
        if value is not None and not least <= value <= most:
            raise RemoteProtocolError(f"a row of history is out of bounds in {name}")


def _is_short_text(text: object) -> bool:
    short = isinstance(text, str) and len(text) <= VERSION_CHARACTERS_MAX
    return short and str(text).isascii() and str(text).isprintable()
