"""The promises and votes of a voter at one height, and the records that make them durable.

Each change returns a record, which must be durable before the change is revealed (SPEC.md R1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ledger.chain.canonical import (
    Reader,
    canonical,
    optional,
    parse,
    read_digest,
    read_fields,
    read_int,
)
from p2ptrain.ledger.chain.values import Entry, LineId
from p2ptrain.ledger.messages.evidence import Statement
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX, Accepted
from p2ptrain.ledger.messages.wire import accepted_from_plain


@dataclass(slots=True)
class Acceptor:
    """The promises and votes of this voter at one height of one line.

    `promised` is the highest round in which this voter promised or voted; round 0 does not need a
    promise. `accepted` is its last vote, if any. A voter that leaves a line for a branch and comes
    back is still bound by its promises on that line.
    """

    line: LineId
    height: int
    promised: int = 0
    accepted: Accepted | None = None

    def promise(self, round: int) -> bytes:
        """Promise not to accept anything in rounds before `round`. Return the record to write."""
        if round <= self.promised:
            raise LocalProtocolError(f"round {round} is not after {self.promised}")
        self.promised = round
        return self._record(round, None)

    def accept(self, round: int, entry: Entry, signature: bytes) -> bytes:
        """Vote for `entry`. Return the record to write. `signature` is the signature of the vote of
        the proposer of `round` for `entry`.
        """
        if not self.may_accept(round, entry):
            raise LocalProtocolError(
                f"accepting in round {round} contradicts an earlier promise or vote"
            )
        self.promised = round
        self.accepted = Accepted(round, entry, signature)
        return self._record(round, self.accepted)

    def may_accept(self, round: int, entry: Entry) -> bool:
        if entry.height != self.height or round < self.promised:
            return False
        accepted = self.accepted
        return accepted is None or accepted.round < round or accepted.entry == entry

    def may_have_said(self, statement: Statement) -> bool:
        """Return whether this voter may have signed `statement`, according to its records."""
        round, entry, until = statement.claim
        if max(round, statement.promised or 0) > self.promised:
            return False
        if self.accepted is None or round > self.accepted.round:
            return entry is None
        if round == self.accepted.round:
            return entry == self.accepted.entry.digest
        return until <= self.accepted.round

    def records(self) -> list[bytes]:
        """Return the records that rebuild this acceptor: at most one vote and one promise."""
        last = self.accepted
        records = [] if last is None else [self._record(last.round, last)]
        if self.promised > (0 if last is None else last.round):
            records.append(self._record(self.promised, None))
        return records

    def _record(self, round: int, accepted: Accepted | None) -> bytes:
        place = {"line": self.line, "height": self.height, "round": round}
        return canonical({**place, "accepted": None if accepted is None else accepted.plain()})


Acceptors = dict[tuple[LineId, int], Acceptor]
"""Acceptors by line and height."""


def restored_acceptors(records: Iterable[bytes], *, decided: Mapping[LineId, int]) -> Acceptors:
    """Rebuild the acceptors of undecided heights from the records on disk.

    `decided` is the height up to which each line of our chain is decided. On lines that are not in
    our chain, the last height at which this node voted may still be undecided, so it is rebuilt.

    Raises LocalProtocolError if a record is invalid: without its promises, a voter must not vote.
    """
    acceptors: Acceptors = {}
    last: dict[LineId, int] = {}
    for record in records:
        line, height, round, accepted = _read(record)
        last[line] = max(height, last.get(line, 0))
        acceptor = acceptors.setdefault((line, height), Acceptor(line, height))
        acceptor.promised = max(acceptor.promised, round)
        if accepted is not None and (acceptor.accepted is None or acceptor.accepted.round <= round):
            acceptor.accepted = accepted
    over = {line: decided.get(line, height - 1) for line, height in last.items()}
    return {place: it for place, it in acceptors.items() if it.height > over[it.line]}


def last_voted(records: Iterable[bytes]) -> dict[LineId, Acceptor]:
    """Return, for each line, the acceptor of the last height in the records, decided or not."""
    return {it.line: it for it in restored_acceptors(records, decided={}).values()}


def _read(record: bytes) -> tuple[LineId, int, int, Accepted | None]:
    try:
        fields = read_fields(parse(record, bytes_max=MESSAGE_BYTES_MAX), _READERS)
    except RemoteProtocolError as exc:
        raise LocalProtocolError("the log of votes contains an invalid record") from exc
    return fields["line"], fields["height"], fields["round"], fields["accepted"]


_READERS: Mapping[str, Reader] = {
    "line": read_digest,
    "height": read_int,
    "round": read_int,
    "accepted": optional(accepted_from_plain),
}
