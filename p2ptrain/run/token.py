"""Tokens: invitations that admit whoever uses them, up to a number of times.

An organiser signs a token, which names a key made for it alone. The invitation contains the secret
half of that key, in a *ticket*. With the secret, a volunteer proves that it has the invitation. The
proof names the volunteer, so a member that forwards the request cannot use it for another peer.

    organiser ── ticket (in an invitation) ──► volunteer
    volunteer ── request to join, token, proof ──► organiser's node ── newer allowlist ──► all

Anybody who has the invitation can use it, so its uses and its lifetime are limited. Only the node
with the key that signed a token admits by it (`node/joining/admit_by_token`), and it counts the
uses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.identity import SEED_BYTES, Identity, is_peer_id, verify
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.run.organiser import said_by_organiser
from p2ptrain.run.published_run import Run
from p2ptrain.run.reading import plain
from p2ptrain.run.roles import ROLES, TRAINER, Role

KIND = "admission-token"
TOKEN_BYTES_MAX = 1024
TICKET_BYTES_MAX = 256
USES_MAX = 1000
UNIX_MAX = 2**40
_DOMAIN = "p2ptrain admission proof 1"


@dataclass(frozen=True, slots=True)
class Token:
    """`key` is the id of the token's key. `uses` is how many peers it admits at most."""

    run: RunId
    key: PeerId
    uses: int
    expires_unix: int
    role: str = TRAINER

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not is_peer_id(self.key):
            raise ValueError("the token's key is not valid")
        if not 1 <= self.uses <= USES_MAX:
            raise ValueError(f"{self.uses} uses are not 1 to {USES_MAX}")
        if not 0 < self.expires_unix <= UNIX_MAX:
            raise ValueError("the end of the token is out of range")
        if self.role not in ROLES:
            raise ValueError(f"the role {self.role[:40]!r} is not known")

    @property
    def end(self) -> str:
        """The end as a date and time in words, in UTC."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.expires_unix))


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token with the organiser's signature, as a request to join contains it."""

    token: Token
    signed: Signed

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, run: Run) -> SignedToken:
        """Return the token for `run` in `data`, which may come from any peer.

        Raises:
            RunMismatch: it is a valid token of another run.
            RemoteProtocolError: it is too long, malformed, altered, or not signed by the run's
                organiser.
        """
        token, signed = said_by_organiser(
            Token, data, run, kind=KIND, bytes_max=TOKEN_BYTES_MAX, code="TOKEN-SIGNER"
        )
        return cls(token, signed)

    def is_proven(self, peer: PeerId, proof: bytes) -> bool:
        """Return whether `proof` shows that `peer` has the secret of this token."""
        return verify(self.token.key, _proof_message(self.token, peer), proof)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A token with the secret of its key. Anybody who has it can be admitted."""

    signed: SignedToken
    secret: Identity = field(repr=False)

    @classmethod
    def issue(
        cls,
        organiser: Identity,
        run: RunId,
        seed: bytes,
        *,
        uses: int,
        expires_unix: int,
        role: Role = TRAINER,
    ) -> Ticket:
        """Return a new ticket. `seed` must be 32 fresh random bytes.

        Raises ValueError: `uses` or `expires_unix` is out of range."""
        secret = Identity.from_seed(seed)
        token = Token(run, secret.peer, uses, expires_unix, role)
        return cls(SignedToken(token, Signed.by(organiser, KIND, pack(plain(token)))), secret)

    def to_bytes(self, organiser: PeerId | None = None) -> bytes:
        """Return the ticket for an invitation, without what the invitation contains anyway. The
        invitation names `organiser`, the run's publisher (None: the signer of the token). If a
        co-organiser signed the token, the ticket names it."""
        token, signed = self.signed.token, self.signed.signed
        value = [self.secret.seed, token.uses, token.expires_unix, token.role, signed.signature]
        return pack(
            value if signed.signer == (organiser or signed.signer) else [*value, signed.signer]
        )

    @classmethod
    def from_bytes(cls, data: bytes, run: RunId, organiser: PeerId) -> Ticket:
        """Return the ticket in `data`, from an invitation to `run` of `organiser`.

        Raises RemoteProtocolError: it is malformed, or its signer did not sign it. The organiser's
        node checks whether the signer is an organiser."""
        match unpack(data, bytes_max=TICKET_BYTES_MAX):
            case [bytes(seed), int(uses), int(expires), str(role), bytes(signature), *rest] if (
                len(seed) == SEED_BYTES and len(rest) <= 1 and all(map(is_peer_id, rest))
            ):
                signer = PeerId(str(rest[0])) if rest else organiser
                secret = Identity.from_seed(seed)
                try:
                    token = Token(run, secret.peer, uses, expires, role)
                except ValueError as exc:
                    raise RemoteProtocolError(f"the ticket: {exc}") from exc
                signed = Signed(KIND, pack(plain(token)), signer, signature)
                return cls(SignedToken(token, signed), secret)
        raise RemoteProtocolError("the ticket in an invitation is malformed")

    def proof_for(self, peer: PeerId) -> bytes:
        """Return the proof that `peer`, which sends it, has this ticket."""
        return self.secret.sign(_proof_message(self.signed.token, peer))


def _proof_message(token: Token, peer: PeerId) -> bytes:
    return pack({"domain": _DOMAIN, "run": token.run, "key": token.key, "peer": peer})
