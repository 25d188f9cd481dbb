"""Whether this process is the only one with its identity: what to ask, and what the answers prove.

Two processes share an identity if a home, or its key, was copied. Both would vote, and both would
be evicted for it. So each process asks a few members every `LOOK_S`, with a nonce that it has just
drawn; and it answers every nonce that is not its own with a signed proof. Members only carry both
(`identity_desk`).

Whose word counts: a proof counts if our own key signed it, over a nonce that this process drew
within the last `FRESH_S`, for an incarnation that is not ours. Nobody without the key can make one,
however many peers lie together; and one is enough, whoever carries it. A liar can delay a start by
`start_s`, have us ask once a second, and keep a proof to itself: then a process that does have
a duplicate learns of it from the next honest member that it asks.

Which one ends: a process that is starting has not voted, so it ends if another runs. Of two that
run, or two that start, the one with the higher incarnation ends, since it started later. The other
votes no more, because both may have signed; it goes on following.

A process whose incarnation is lower than one that its own key vouches for (its home was restored
from a backup, or its duplicate has ended) counts on from there, or nobody would take its
heartbeats. It does so only while no other process is known to live.

Sans-IO: times and randomness come in. Who is connected, and how questions travel, is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers.identity_messages import (
    CHALLENGES_MAX,
    NONCE_BYTES,
    PROOFS_MAX,
    Proof,
    Question,
    Reply,
    Sign,
    Verify,
    is_genuine,
    made_mark,
    made_proof,
    vouches,
)
from p2ptrain.peers.incarnations import Mark

LOOK_S = 3.0
"""Between two questions in turn."""

ALARM_S = 1.0
"""Between two questions out of turn: while starting, when another process with our identity is
said to ask, and while one was found."""

ASKED_AT_ONCE = 4
"""Members that are asked each time. A question costs both sides some milliseconds of CPU."""

FRESH_S = 30.0
"""A proof is accepted for so long after its nonce was drawn. A longer time would let somebody who
keeps a proof back choose when a process learns of its duplicate; a desk keeps proofs as long."""

LINGER_S = 10.0
"""So long the process that ends goes on asking and answering, so that the other one finds it."""

ANSWERED_MAX = 256
"""Challenges of as many members as there are liars in a large run, with eight of each."""

QUIET_S = 30.0
"""After so long without a proof of its life, a duplicate is taken to have ended."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another process with our identity was alive. `ends_us`: we started later. `carried_by`: the
    member that passed its proof on.
    """

    incarnation: int
    carried_by: PeerId
    ends_us: bool


def start_s() -> float:
    """How long a start waits for the proof of another process, where one may be alive: until that
    process asks in turn, and until its answer is fetched, with one turn to spare.
    """
    return LOOK_S + 2 * ALARM_S


def askable(
    connected: Collection[PeerId],
    admitted: Callable[[PeerId], bool],
    voters: Collection[PeerId],
    members: Collection[PeerId],
) -> tuple[set[PeerId], set[PeerId]]:
    """Return which voters, and which members besides, may be asked: admitted peers only.

    A stranger's silence must not look like an answer, nor use up a place. While the members are not
    known, or not connected, admitted peers are asked in their place; that is harmless, since only a
    proof counts.
    """
    here = {peer for peer in connected if admitted(peer)}
    return here & set(voters), here & set(members) or here


class DuplicateWatch:
    """One process. `duplicate` is one that was found; if several were, one that ends us.
    `suspected`: some member that was asked has heard another incarnation lately. `mark` vouches for
    `incarnation`.
    """

    def __init__(
        self,
        me: PeerId,
        run: RunId,
        incarnation: int,
        sign: Sign,
        verify: Verify,
        random: Random,
        *,
        starting: bool = False,
    ) -> None:
        self.me = me
        self._run = run
        self._sign = sign
        self._verify = verify
        self._random = random
        self.starting = starting
        self.duplicate: Duplicate | None = None
        self.suspected = False
        self._own: set[int] = set()
        self._nonces: dict[bytes, float] = {}
        self._challengers: dict[PeerId, tuple[Proof, ...]] = {}
        """Proofs that members are to get with the next question."""
        self._proved_s = float("-inf")
        """When the newest nonce was drawn that another process has signed: it was alive then."""
        self._newest = 0
        self._behind_s = float("inf")
        """Since when our key is known to vouch for a newer incarnation than ours."""
        self._answered: dict[tuple[PeerId, bytes], None] = {}
        """Challenges that were answered to a member; it repeats them until they are old."""
        self._ask_at = float("-inf")
        self._alarmed_s = float("-inf")
        self.take_incarnation(incarnation)

    def take_incarnation(self, incarnation: int) -> None:
        """Speak as this one from now on."""
        self.incarnation = incarnation
        self._own.add(incarnation)
        self._behind_s = float("inf")
        self.mark = made_mark(self._run, incarnation, self._sign)

    def is_ours(self, incarnation: int) -> bool:
        """Whether this process speaks as this one, or did so before it counted on."""
        return incarnation in self._own

    def next_ask_s(self) -> float:
        """When to ask next."""
        return self._ask_at

    def ask(
        self, voters: Collection[PeerId], others: Collection[PeerId], now: float
    ) -> list[tuple[PeerId, Question]]:
        """Return the questions of this turn. `voters` and `others` are admitted members that are
        connected; voters are asked first, and members that wait for our proofs as well.

        Returns nothing, and asks soon, if nobody is there to be asked.
        """
        if not voters and not others:
            self._ask_at = now + ALARM_S
            return []
        self._ask_at = now + (ALARM_S if self._is_alarmed(now) else LOOK_S)
        nonce = self._random.randbytes(NONCE_BYTES)
        self._nonces = {n: at for n, at in self._nonces.items() if now <= at + FRESH_S}
        self._nonces[nonce] = now
        answers, self._challengers = self._challengers, {}
        reachable = {*voters, *others}
        asked = dict.fromkeys(self._chosen(voters, others))
        asked |= {peer: None for peer in answers if peer in reachable}
        return [
            (peer, Question(nonce, self.incarnation, self.starting, answers.get(peer, ())))
            for peer in asked
        ]

    def hear_reply(self, member: PeerId, reply: Reply, now: float) -> None:
        """A member that was asked has answered."""
        self.suspected |= reply.suspected
        for proof in reply.proofs:
            self._judge(member, proof, now)
        self.hear_challenges(member, reply.challenges, now)
        mark = reply.mark
        if mark is not None and mark.incarnation > max(self._newest, self.incarnation):
            self._hear_mark(mark, now)

    def hear_challenges(self, member: PeerId, nonces: Collection[bytes], now: float) -> None:
        """Others asked with our identity, by the word of `member`: it gets our proofs, and we ask.

        A nonce that is ours came back, and is no reason for anything.
        """
        new = [n for n in nonces if n not in self._nonces and (member, n) not in self._answered]
        new = new[:CHALLENGES_MAX]
        if not new:
            return
        self._answered |= {(member, nonce): None for nonce in new}
        while len(self._answered) > ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
        proofs = [self._proof(nonce) for nonce in new]
        self._challengers[member] = (*proofs, *self._challengers.get(member, ()))[:PROOFS_MAX]
        while len(self._challengers) > 2 * ASKED_AT_ONCE:
            del self._challengers[next(iter(self._challengers))]
        self.hurry(now)

    def hurry(self, now: float) -> None:
        """Ask at once, but not more often out of turn than every `ALARM_S`."""
        due = max(now, self._alarmed_s + ALARM_S)
        if due < self._ask_at:
            self._ask_at, self._alarmed_s = due, due

    def lives_elsewhere(self, now: float) -> bool:
        """Whether another process has proved lately that it lives."""
        return now < self._proved_s + QUIET_S

    def raise_to(self, now: float) -> int:
        """Return the incarnation that ours has to exceed, for our heartbeats to count; 0 if ours is
        the newest that our key vouches for, or if another process may live with that one.
        """
        wait_s = 0.0 if self.starting else QUIET_S
        quiet = now >= self._behind_s + wait_s and not self.lives_elsewhere(now)
        return self._newest if quiet else 0

    def may_start(self) -> bool:
        """Whether nothing that was answered speaks for waiting any longer."""
        return not self.suspected

    def _is_alarmed(self, now: float) -> bool:
        return self.starting or (self.duplicate is not None and self.lives_elsewhere(now))

    def _chosen(self, voters: Collection[PeerId], others: Collection[PeerId]) -> list[PeerId]:
        """Return a few at random, voters first."""
        chosen = self._shuffled(voters)[:ASKED_AT_ONCE]
        more = self._shuffled(set(others) - set(voters))
        return [*chosen, *more[: ASKED_AT_ONCE - len(chosen)]]

    def _shuffled(self, peers: Collection[PeerId]) -> list[PeerId]:
        """Sorted first: the order of a set differs between processes, and a seed must not."""
        return self._random.sample(sorted(peers), len(peers))

    def _proof(self, nonce: bytes) -> Proof:
        return made_proof(self._run, nonce, self.incarnation, self._sign, starting=self.starting)

    def _judge(self, member: PeerId, proof: Proof, now: float) -> None:
        """Decide what a proof means, if it is one: what is cheap to check comes first."""
        drawn_s = self._drawn_s(proof.nonce, now)
        if drawn_s is None or self.is_ours(proof.incarnation):
            return
        if drawn_s <= self._proved_s:
            return  # It shows nothing that was not known. Desks repeat proofs until they are old.
        if proof.starting and not self.starting:
            return  # It has not voted, and it is the one that ends.
        if not is_genuine(self._run, self.me, proof, self._verify):
            return
        self._proved_s = drawn_s
        ends_us = self.incarnation > proof.incarnation or (self.starting and not proof.starting)
        if ends_us or (self.duplicate is None and not self.starting):
            self.duplicate = Duplicate(proof.incarnation, member, ends_us)

    def _drawn_s(self, nonce: bytes, now: float) -> float | None:
        """Return when this process drew this nonce; None if it did not, or too long ago."""
        drawn_s = self._nonces.get(nonce)
        return None if drawn_s is None or now > drawn_s + FRESH_S else drawn_s

    def _hear_mark(self, mark: Mark, now: float) -> None:
        if vouches(self._run, self.me, mark, self._verify):
            self._newest = mark.incarnation
            self._behind_s = min(self._behind_s, now)
