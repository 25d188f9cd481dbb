"""The chain as one log on disk: certified entries, preceded by a *base* if the chain was pruned. A
base is a Commit and the state that it applies to; verification starts there instead of at genesis.

There is only one log, so that pruning is one rename: after a crash, the log contains either the old
chain or the pruned chain. The first record may be an *origin*: the base, and the checkpoint (height
and digest of a Commit) that the user chose to trust. There is no checkpoint if this home has
verified all entries before the base.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain.canonical import (
    canonical,
    parse,
    read_digest,
    read_int,
    read_list,
    read_map,
)
from p2ptrain.ledger.chain.decode_values import certified_from_plain
from p2ptrain.ledger.chain.values import Certified
from p2ptrain.ledger.history.base import BASE_BYTES_MAX, Base, Checkpoint, base_from_plain
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX

ORIGIN_BYTES_MAX = BASE_BYTES_MAX + 256
_MARK = b'{"base":'


@dataclass(frozen=True, slots=True)
class Origin:
    """The beginning of a pruned chain. `trusted` is the checkpoint that the user named; None if
    this home verified all entries before it pruned them.
    """

    base: Base
    trusted: Checkpoint | None = None

    @property
    def words(self) -> str:
        """The origin as text, such as "verified from height 412 (checkpoint trusted by you), not
        from genesis".
        """
        checkpoint, trusted = self.base.checkpoint, self.trusted
        place = f"checkpoint {checkpoint.height} ({checkpoint.digest[:12]}…)"
        if trusted is None:
            return (
                f"verified from {place} on; earlier entries were verified and pruned in this home"
            )
        first = f"verified from height {trusted.height} (checkpoint trusted by you)"
        pruned = f"; pruned in this home up to {place}" if trusted != checkpoint else ""
        return f"{first}, not from genesis{pruned}"


@dataclass(frozen=True, slots=True)
class ChainFile:
    """The decoded contents of a log, not verified. If there is an origin, `entries` follow its
    Commit.
    """

    origin: Origin | None = None
    entries: list[Certified] = field(default_factory=list)

    @property
    def base(self) -> Base | None:
        return None if self.origin is None else self.origin.base

    @property
    def whole(self) -> list[Certified]:
        """All entries to verify: the base's Commit, if there is a base, and `entries`."""
        return self.entries if self.origin is None else [self.origin.base.commit, *self.entries]


def entry_bytes(certified: Certified) -> bytes:
    """Encode a certified entry for the log."""
    return canonical(certified.plain())


def entry_of(record: bytes) -> Certified:
    """Decode a record of the log. Raises RemoteProtocolError."""
    return certified_from_plain(parse(record, bytes_max=MESSAGE_BYTES_MAX))


def origin_bytes(origin: Origin) -> bytes:
    named = origin.trusted
    trusted = None if named is None else [named.height, named.digest]
    return canonical({"base": origin.base.plain(), "trusted": trusted})


def origin_of(record: bytes) -> Origin | None:
    """Return the origin in the first record of a log; None if that record is an entry. Raises
    RemoteProtocolError.
    """
    if not record.startswith(_MARK):
        return None
    plain = parse(record, bytes_max=ORIGIN_BYTES_MAX)
    fields = read_map(plain, fields=frozenset({"base", "trusted"}))
    origin = Origin(base_from_plain(fields["base"]), _checkpoint(fields["trusted"]))
    if origin_bytes(origin) != record:
        raise RemoteProtocolError("the beginning of a chain is not in canonical form")
    return origin


def _checkpoint(plain: object) -> Checkpoint | None:
    if plain is None:
        return None
    pair = read_list(plain, "trusted", length_max=2)
    if len(pair) != 2 or not read_int(pair[0], "height"):
        raise RemoteProtocolError("a checkpoint is a height and a digest")
    return Checkpoint(read_int(pair[0], "height"), read_digest(pair[1], "digest"))


def read_chain(records: Iterable[bytes]) -> ChainFile:
    """Decode the records of a log, or the lines of a file. Raises RemoteProtocolError."""
    origin: Origin | None = None
    entries: list[Certified] = []
    for number, record in enumerate(records):
        origin = origin_of(record) if number == 0 else origin
        if number > 0 or origin is None:
            entries.append(entry_of(record))
    return ChainFile(origin, entries)


def chain_records(origin: Origin | None, entries: Iterable[Certified]) -> Iterator[bytes]:
    """Yield the records of a log with this chain; `entries` are those after the origin."""
    if origin is not None:
        yield origin_bytes(origin)
    for certified in entries:
        yield entry_bytes(certified)
