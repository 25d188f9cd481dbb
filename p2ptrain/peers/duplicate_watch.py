"""Find out whether another process has the same identity: what to ask, and what the answers prove.

Two processes share an identity if a node's directory, or its key, was copied. Both processes would
vote, and their identity would be evicted for that. So each process asks a few members every
`LOOK_S`, with a nonce that it has just drawn. It answers every nonce that is not its own with a
signed proof. Members only forward nonces and proofs (`identity_mailboxes`).

Each start of a node has an *incarnation*, a number that is higher for a later start. A proof counts
if it is signed with our own key, for a nonce that this process drew within the last `FRESH_S`, and
for an incarnation that is not ours. Nobody can make a proof without the key, no matter how many
peers collude. One proof is enough, no matter which peer forwards it. A liar can delay a start by
`start_wait_s`, make us ask once a second, or withhold a proof. In the last case, a process that has
a duplicate learns of it from the next honest member that it asks.

A starting process has not voted, so it ends if another process is running. If both are running, or
both are starting, the process with the higher incarnation ends, since it started later. The other
process stops voting, because both may have signed votes; it only follows the ledger.

A process can have a lower incarnation than another one that its own key has signed: its directory
was restored from a backup, or its duplicate has ended. Other nodes ignore the heartbeats of the
lower incarnation. So the process takes a new incarnation above the higher one, but only while no
other process is known to be alive.

This module does no I/O: times and randomness are arguments. It does not know which peers are
connected, nor how questions are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from p2ptrain.ids import PeerId, RunId
from p2ptrain.ledger.chain.signatures import Sign, Verify
from p2ptrain.peers.identity_messages import (
    CHALLENGES_MAX,
    NONCE_BYTES,
    PROOFS_MAX,
    IdentityProof,
    IdentityQuestion,
    IdentityReply,
    is_genuine,
    is_genuine_mark,
    make_mark,
    make_proof,
)
from p2ptrain.peers.incarnations import Mark

LOOK_S = 3.0
"""Seconds between two regular questions."""

ALARM_S = 1.0
"""Seconds between two extra questions. They are sent during a start, when a member forwards a nonce
of another process with our identity, and while such a process is known to be alive."""

ASKED_AT_ONCE = 4
"""Number of members that are asked each time. A question costs each side a few ms of CPU time."""

FRESH_S = 30.0
"""Seconds for which a proof is accepted, counted from when its nonce was drawn. With a longer time,
a peer that withholds a proof could choose when a process learns of its duplicate. Members keep
proofs for the same time (`identity_mailboxes.KEPT_S`)."""

LINGER_S = 10.0
"""Seconds for which a process that must end still asks and answers, so that the other process
learns of its duplicate too."""

ANSWERED_MAX = 256
"""Maximum number of challenges (nonces of other processes) that are remembered as answered: enough
for 32 members with eight challenges each."""

QUIET_S = 30.0
"""Seconds without a proof after which a duplicate is assumed to have ended."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another process with our identity that has proved to be alive. `ends_us`: this process must
    end, not the other one. `carried_by`: the member that forwarded the proof."""

    incarnation: int
    carried_by: PeerId
    ends_us: bool


@dataclass(frozen=True, slots=True)
class QuestionTiming:
    """How often a process asks, and how long it waits. Users cannot change these."""

    look_s: float = LOOK_S
    alarm_s: float = ALARM_S
    linger_s: float = LINGER_S
    quiet_s: float = QUIET_S
    start_wait_s: float = LOOK_S + 2 * ALARM_S
    """Seconds that a start waits for the proof of another process, if one may be alive. The other
    process asks within `LOOK_S` and gets the nonce; one `ALARM_S` later this process asks again and
    gets the proof. Another `ALARM_S` is a reserve."""


USUAL_TIMING = QuestionTiming()


def peers_to_ask(
    connected: Collection[PeerId],
    admitted: Callable[[PeerId], bool],
    voters: Collection[PeerId],
    members: Collection[PeerId],
) -> tuple[set[PeerId], set[PeerId]]:
    """Return the connected voters and the connected members. Only admitted peers are asked: a
    stranger could stay silent, and take the place of a member that would have answered. While no
    member is connected, the second set contains the other admitted peers. Asking these is harmless,
    since only a proof counts."""
    here = {peer for peer in connected if admitted(peer)}
    return here & set(voters), here & set(members) or here


class DuplicateWatch:
    """The search of one process for a duplicate.

    `duplicate` is the duplicate that was found, if any; if there are several, one that ends us.
    `suspected`: a member that was asked has recently heard from a different incarnation. `mark` is
    the signature over `incarnation`, which proves that this identity took the incarnation.
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
        timing: QuestionTiming = USUAL_TIMING,
    ) -> None:
        self.me = me
        self._run = run
        self._sign = sign
        self._verify = verify
        self._random = random
        self.starting = starting
        self._timing = timing
        self.duplicate: Duplicate | None = None
        self.suspected = False
        self._own: set[int] = set()
        self._nonces: dict[bytes, float] = {}
        self._challengers: dict[PeerId, tuple[IdentityProof, ...]] = {}
        """Proofs to send to members with the next question."""
        self._proved_s = float("-inf")
        """When this process drew the newest nonce that another process has signed. The other
        process was alive at that time or later."""
        self._newest = 0
        self._behind_s = float("inf")
        """When this process learned that its key has signed a newer incarnation than its own."""
        self._answered: dict[tuple[PeerId, bytes], None] = {}
        """Answered challenges, each with the member that forwarded it. Members repeat a challenge
        until it is too old, but it is answered only once for each member."""
        self._ask_at = float("-inf")
        self._alarmed_s = float("-inf")
        self.use_incarnation(incarnation)

    def use_incarnation(self, incarnation: int) -> None:
        """Use this incarnation from now on."""
        self.incarnation = incarnation
        self._own.add(incarnation)
        self._behind_s = float("inf")
        self.mark = make_mark(self._run, incarnation, self._sign)

    def is_ours(self, incarnation: int) -> bool:
        """Return whether this process uses this incarnation, or has used it."""
        return incarnation in self._own

    def next_ask_s(self) -> float:
        """Return the time at which to call `ask` again."""
        return self._ask_at

    def ask(
        self, voters: Collection[PeerId], others: Collection[PeerId], now: float
    ) -> list[tuple[PeerId, IdentityQuestion]]:
        """Return the questions to send now, with their recipients. `voters` and `others` are the
        peers that may be asked (`peers_to_ask`), of which a few are chosen, voters first. Members
        that wait for our proofs are asked as well. If nobody may be asked, try again soon."""
        if not voters and not others:
            self._ask_at = now + self._timing.alarm_s
            return []
        alarmed = self._is_alarmed(now)
        self._ask_at = now + (self._timing.alarm_s if alarmed else self._timing.look_s)
        nonce = self._random.randbytes(NONCE_BYTES)
        self._nonces = {n: at for n, at in self._nonces.items() if now <= at + FRESH_S}
        self._nonces[nonce] = now
        answers, self._challengers = self._challengers, {}
        reachable = {*voters, *others}
        asked = dict.fromkeys(self._chosen(voters, others))
        asked |= {peer: None for peer in answers if peer in reachable}
        return [
            (peer, IdentityQuestion(nonce, self.incarnation, self.starting, answers.get(peer, ())))
            for peer in asked
        ]

    def note_reply(self, member: PeerId, reply: IdentityReply, now: float) -> None:
        """Handle the reply of a member that was asked."""
        self.suspected |= reply.suspected
        for proof in reply.proofs:
            self._judge(member, proof, now)
        self.note_challenges(member, reply.challenges, now)
        mark = reply.mark
        if mark is not None and mark.incarnation > max(self._newest, self.incarnation):
            self._hear_mark(mark, now)

    def note_challenges(self, member: PeerId, nonces: Collection[bytes], now: float) -> None:
        """Handle nonces that `member` forwards from other processes with our identity: send our
        proofs to `member` with the next question, and ask soon. Our own nonces, if they come back,
        are ignored."""
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
        self.ask_soon(now)

    def ask_soon(self, now: float) -> None:
        """Ask an extra question as soon as possible, but at most once per `alarm_s`."""
        due = max(now, self._alarmed_s + self._timing.alarm_s)
        if due < self._ask_at:
            self._ask_at, self._alarmed_s = due, due

    def lives_elsewhere(self, now: float) -> bool:
        """Return whether another process has recently proved that it is alive."""
        return now < self._proved_s + self._timing.quiet_s

    def incarnation_to_exceed(self, now: float) -> int:
        """Return the incarnation that ours must exceed for our heartbeats to count. Return 0 if
        ours is the newest that our key has signed, or if another process may be using the
        newest."""
        wait_s = 0.0 if self.starting else self._timing.quiet_s
        quiet = now >= self._behind_s + wait_s and not self.lives_elsewhere(now)
        return self._newest if quiet else 0

    def may_start(self) -> bool:
        """Return whether no answer so far is a reason to keep waiting."""
        return not self.suspected

    def _is_alarmed(self, now: float) -> bool:
        return self.starting or (self.duplicate is not None and self.lives_elsewhere(now))

    def _chosen(self, voters: Collection[PeerId], others: Collection[PeerId]) -> list[PeerId]:
        """Return a few members at random, voters first."""
        chosen = self._shuffled(voters)[:ASKED_AT_ONCE]
        more = self._shuffled(set(others) - set(voters))
        return [*chosen, *more[: ASKED_AT_ONCE - len(chosen)]]

    def _shuffled(self, peers: Collection[PeerId]) -> list[PeerId]:
        """Return `peers` in random order. They are sorted first, because the order of a set differs
        between processes, and the result must depend only on the seed."""
        return self._random.sample(sorted(peers), len(peers))

    def _proof(self, nonce: bytes) -> IdentityProof:
        return make_proof(self._run, nonce, self.incarnation, self._sign, starting=self.starting)

    def _judge(self, member: PeerId, proof: IdentityProof, now: float) -> None:
        """Decide what a proof means. Cheap checks come first."""
        drawn_s = self._nonces.get(proof.nonce)
        if drawn_s is None or now > drawn_s + FRESH_S or self.is_ours(proof.incarnation):
            return
        if drawn_s <= self._proved_s:
            return  # This proof is not newer. Mailboxes repeat proofs for a while.
        if proof.starting and not self.starting:
            return  # The other process has not voted, so it ends, and this process does not.
        if not is_genuine(self._run, self.me, proof, self._verify):
            return
        self._proved_s = drawn_s
        ends_us = self.incarnation > proof.incarnation or (self.starting and not proof.starting)
        if ends_us or (self.duplicate is None and not self.starting):
            self.duplicate = Duplicate(proof.incarnation, member, ends_us)

    def _hear_mark(self, mark: Mark, now: float) -> None:
        if is_genuine_mark(self._run, self.me, mark, self._verify):
            self._newest = mark.incarnation
            self._behind_s = min(self._behind_s, now)
