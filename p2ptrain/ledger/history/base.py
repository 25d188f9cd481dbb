"""The start of a chain whose first entries are no longer kept: a certified state instead of
genesis.

A Commit that certifies a snapshot names the state that it applies to. That state and that Commit
are a *base*: a node that knows that the Commit is in the run's chain can go on from there. To know
it, a node needs the entries before, or somebody's word: people compare the *checkpoint* (height and
digest of the Commit). A base proves nothing by itself, since the voters who signed its Commit are
known only from its own state.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, is_digest
from p2ptrain.ledger.chain.canonical import canonical, parse, read_map
from p2ptrain.ledger.chain.decode_values import certified_from_plain
from p2ptrain.ledger.chain.state import STATE_BYTES_MAX, LedgerState, plain_state
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.history.decode_state import state_from_plain
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX

BASE_BYTES_MAX = STATE_BYTES_MAX + MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A certified Commit, identified by height and digest. Its text form is HEIGHT:DIGEST."""

    height: int
    digest: Digest

    def __post_init__(self) -> None:
        if self.height < 1 or not is_digest(self.digest):
            raise ValueError("a checkpoint is the height and the digest of an entry")

    def __str__(self) -> str:
        return f"{self.height}:{self.digest}"

    @staticmethod
    def parse(text: str) -> Checkpoint:
        """Parse HEIGHT:DIGEST. Raises ValueError."""
        height, _, digest = text.partition(":")
        if not height.isascii() or not height.isdigit() or len(height) > 15:
            raise ValueError("a checkpoint is written HEIGHT:DIGEST")
        return Checkpoint(int(height), Digest(digest))


@dataclass(frozen=True, slots=True)
class Base:
    """A state, and the certified Commit that names it and comes next."""

    state: LedgerState
    commit: Certified

    def __post_init__(self) -> None:
        entry, value = self.commit.entry, self.commit.entry.value
        if not isinstance(value, Commit) or value.state != self.state.digest:
            raise ValueError("a base is a state and the commit that names it")
        if entry.height != self.state.height + 1 or entry.parent != self.state.head:
            raise ValueError("the commit of a base comes right after its state")

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.commit.entry.height, self.commit.entry.digest)

    @property
    def step(self) -> int:
        """The outer step that the Commit of this base ends. The updates of earlier steps are not
        known.
        """
        return self.state.step

    def plain(self) -> dict[str, object]:
        return {"state": plain_state(self.state), "commit": self.commit.plain()}


def encode_base(base: Base) -> bytes:
    return canonical(base.plain())


def decode_base(data: bytes) -> Base:
    """Decode a base from a peer or a disk. Raises RemoteProtocolError and nothing else."""
    base = base_from_plain(parse(data, bytes_max=BASE_BYTES_MAX))
    if encode_base(base) != data:
        raise RemoteProtocolError("a base is not in its canonical spelling")
    return base


def base_from_plain(plain: object) -> Base:
    fields = read_map(plain, fields=frozenset({"state", "commit"}))
    state, commit = state_from_plain(fields["state"]), certified_from_plain(fields["commit"])
    try:
        return Base(state, commit)
    except ValueError as exc:
        raise RemoteProtocolError(str(exc)) from exc
