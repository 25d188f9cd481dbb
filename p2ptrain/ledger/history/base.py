"""The start of a chain after its first entries were pruned: a certified state instead of genesis.

A Commit that certifies a snapshot names the state that it applies to. That state and that Commit
form a *base*. A node that knows that the Commit is in the run's chain can continue from there. To
know that, a node needs either the earlier entries or a *checkpoint* (the height and digest of the
Commit) from somebody its user trusts. A base by itself does not prove anything. Only the
base's own state names the voters that signed its Commit, and anybody can invent such a state.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import Digest, is_digest
from p2ptrain.ledger.chain.canonical import built, canonical, parse, read_fields
from p2ptrain.ledger.chain.decode_values import certified_from_plain
from p2ptrain.ledger.chain.state import STATE_BYTES_MAX, LedgerState, plain_state
from p2ptrain.ledger.chain.values import Certified, Commit
from p2ptrain.ledger.history.decode_state import state_from_plain
from p2ptrain.ledger.messages.messages import MESSAGE_BYTES_MAX

BASE_BYTES_MAX = STATE_BYTES_MAX + MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The height and digest of a certified Commit. Its text form is HEIGHT:DIGEST."""

    height: int
    digest: Digest

    def __post_init__(self) -> None:
        if self.height < 1 or not is_digest(self.digest):
            raise ValueError("a checkpoint must be the height and digest of an entry")

    def __str__(self) -> str:
        return f"{self.height}:{self.digest}"

    @staticmethod
    def parse(text: str) -> Checkpoint:
        """Parse HEIGHT:DIGEST. Raises ValueError."""
        height, _, digest = text.partition(":")
        if not height.isascii() or not height.isdigit() or len(height) > 15:
            raise ValueError("a checkpoint must have the form HEIGHT:DIGEST")
        return Checkpoint(int(height), Digest(digest))


@dataclass(frozen=True, slots=True)
class Base:
    """A state, and the certified Commit that names it and directly follows it."""

    state: LedgerState
    commit: Certified

    def __post_init__(self) -> None:
        entry, value = self.commit.entry, self.commit.entry.value
        if not isinstance(value, Commit) or value.state != self.state.digest:
            raise ValueError("the commit of a base must name its state")
        if entry.height != self.state.height + 1 or entry.parent != self.state.head:
            raise ValueError("the commit of a base must directly follow its state")

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.commit.entry.height, self.commit.entry.digest)

    @property
    def step(self) -> int:
        """The outer step that the base's Commit ends. Earlier updates are in pruned entries."""
        return self.state.step

    def plain(self) -> dict[str, object]:
        return {"state": plain_state(self.state), "commit": self.commit.plain()}


def encode_base(base: Base) -> bytes:
    return canonical(base.plain())


def decode_base(data: bytes) -> Base:
    """Decode a base from a peer or from disk. Raises only RemoteProtocolError."""
    base = base_from_plain(parse(data, bytes_max=BASE_BYTES_MAX))
    if encode_base(base) != data:
        raise RemoteProtocolError("a base is not in its canonical encoding")
    return base


def base_from_plain(plain: object) -> Base:
    fields = read_fields(plain, {"state": state_from_plain, "commit": certified_from_plain})
    return built(Base, **fields)
