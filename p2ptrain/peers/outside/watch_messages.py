"""The question of an observer, and a node's answer: entries of the ledger, and signed records.

    observer ── the run, and how far it has got ──► any node of the run
    observer ◄── a page of the ledger, telemetry records, samples ── that node

The observer checks everything itself: the entries by their certificates, and each record by its
signature and against the entries. So a node can withhold something, but it cannot invent anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.encoding import count, fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId, is_digest
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX
from p2ptrain.peers.outside import sample_text, telemetry

REQUEST_BYTES_MAX = 512
RECORDS_MAX = 64
"""Maximum number of telemetry records, and of samples, in an answer. An observer that has been away
for longer misses the loss of the steps in between, but no entry."""

REPLY_BYTES_MAX = (
    MESSAGE_BYTES_MAX
    + RECORDS_MAX * (telemetry.RECORD_BYTES_MAX + sample_text.RECORD_BYTES_MAX + 16)
    + 1024
)
COUNT_MAX = 2**53


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A question about `run`. The observer wants the entries from `from_height` on, records of
    outer steps above `records_after`, and samples of outer steps above `samples_after`."""

    run: RunId
    from_height: int
    records_after: int
    samples_after: int


@dataclass(frozen=True, slots=True)
class WatchReply:
    """The answer. `page` is an encoded message of the ledger, Entries or Pruned."""

    page: bytes
    records: tuple[bytes, ...]
    samples: tuple[bytes, ...]


def encode_request(request: WatchRequest) -> bytes:
    return pack(
        {
            "run": request.run,
            "from_height": request.from_height,
            "records_after": request.records_after,
            "samples_after": request.samples_after,
        }
    )


def decode_request(data: bytes) -> WatchRequest:
    """Decode a request. Raises RemoteProtocolError if it is malformed."""
    numbers = ("from_height", "records_after", "samples_after")
    wire = fields(unpack(data, bytes_max=REQUEST_BYTES_MAX), run=str, **dict.fromkeys(numbers, int))
    run = wire["run"]
    if not is_digest(run):
        raise RemoteProtocolError("a request to watch does not name a run")
    return WatchRequest(
        RunId(str(run)), *(count(wire[name], COUNT_MAX, "a request to watch") for name in numbers)
    )


def encode_reply(reply: WatchReply) -> bytes:
    newest = {"records": reply.records, "samples": reply.samples}
    lists = {name: list(items[-RECORDS_MAX:]) for name, items in newest.items()}
    return pack({"page": reply.page, **lists})


def decode_reply(data: bytes) -> WatchReply:
    """Decode an answer, but not its records. Raises RemoteProtocolError if it is malformed."""
    wire = fields(unpack(data, bytes_max=REPLY_BYTES_MAX), page=bytes, records=list, samples=list)
    page, records, samples = wire["page"], wire["records"], wire["samples"]
    assert isinstance(page, bytes)
    return WatchReply(page, _signed(records), _signed(samples))


def _signed(items: object) -> tuple[bytes, ...]:
    assert isinstance(items, list)
    if len(items) > RECORDS_MAX or not all(isinstance(item, bytes) for item in items):
        raise RemoteProtocolError(f"an answer has at most {RECORDS_MAX} records of each kind")
    return tuple(items)
