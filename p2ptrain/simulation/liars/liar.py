"""A peer that lies in every way that the network's authentication leaves open to it.

It runs the real ledger and falsifies its output; `Lie` lists the ways. It cannot sign for others or
send messages in the name of others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.values import (
    Certificate,
    Certified,
    Commit,
    Entry,
    Roster,
    Skip,
    Value,
    Vote,
)
from p2ptrain.ledger.messages.effects import Announce, Effect, Send
from p2ptrain.ledger.messages.events import Event
from p2ptrain.ledger.messages.messages import (
    Accept,
    Accepted,
    Message,
    Outcome,
    Prepare,
    Promise,
    PromiseProof,
    Propose,
    Refused,
)
from p2ptrain.ledger.messages.peer_reports import ReduceDone, SnapshotTaken, UpdateHeld
from p2ptrain.ledger.paxos.electorate import Electorate, proof_of
from p2ptrain.simulation.disk import digest, signature_of, signer, verify
from p2ptrain.simulation.network import Payload, SimHeartbeat
from p2ptrain.simulation.node import SimNode

MEMORY = 64
"""Maximum number of messages that a liar keeps for replays."""


class Lie(Enum):
    """Kinds of lies. Each liar tells a random selection of them, so that a clumsy lie does not
    always expose a liar that also tells a clever one."""

    TWINS = "two entries in one round"
    DENIALS = "proposals and certificates without its own signature"
    INVENTED_VOTES = "promises that claim entries which were never proposed"
    BENT_PROOFS = "proposals with promises of strangers, or with impossible claims"
    DOUBLE_VOTES = "two votes in one round"
    HIDDEN_VOTES = "promises that hide votes"
    FORGERIES = "invented entries and certificates"
    REPLAYS = "replays of earlier messages"
    SNAPSHOTS = "invented snapshots"
    STATES = "commits that name a wrong state"
    RESULTS = "invented updates, before the reduce has ended; it serves their bytes"
    USURPATION = "rosters that omit healthy voters"
    HASTE = "rounds of its own before those of others are over"


HURRY_S = 0.1
"""Seconds between two rounds of a liar that hurries: less time than others need to decide."""

MISCHIEF = 0.3
"""Probability that a liar or Sybil forges or replays something when it gossips."""


class Liar(SimNode):
    def __init__(self, *place: Any, random: Random, **rest: Any) -> None:
        super().__init__(*place, **rest)
        self._random = random
        self.lies = frozenset(random.sample(list(Lie), random.randint(1, len(Lie))))
        self._heard: deque[Message] = deque(maxlen=MEMORY)
        self._twins: dict[Digest, Entry] = {}
        self._votes: dict[Digest, dict[PeerId, bytes]] = {}
        self._round = 0
        self._hurried_at = 0.0

    def _write_s(self) -> float:
        """Return 0 if the liar invents its snapshots, so that it reports before the others."""
        return 0.0 if Lie.SNAPSHOTS in self.lies else super()._write_s()

    def wrote(self, taken: SnapshotTaken) -> None:
        if Lie.SNAPSHOTS in self.lies:
            taken = replace(taken, digest=digest(f"no such snapshot {taken.step}"))
        super().wrote(taken)

    def _take_part(self, entry: Digest, roster: Roster) -> None:
        super()._take_part(entry, roster)
        now, told = (roster.step, roster.attempt), self._done
        if Lie.RESULTS not in self.lies:
            return
        if told is not None and (told.step, told.attempt) == now:
            return
        invented = digest(f"no reduce has made this: {entry}")
        self.disk.updates.add(invented)
        super().handle(UpdateHeld(invented))
        self.report(ReduceDone(self.me, *now, invented))

    def reduced(self, roster: Roster, update: Digest | None, suspects: tuple[PeerId, ...]) -> None:
        if update is None or Lie.RESULTS not in self.lies:
            return super().reduced(roster, update, suspects)
        self.disk.updates.add(update)
        super().handle(UpdateHeld(update))

    def handle(self, event: Event) -> None:
        """Tell its own ledger that all voters wrote the invented snapshot."""
        if not isinstance(event, SnapshotTaken) or Lie.SNAPSHOTS not in self.lies:
            return super().handle(event)
        invented = digest(f"no such snapshot {event.step}")
        for voter in self.state.voters:
            super().handle(SnapshotTaken(voter, event.step, invented))

    def receive(self, sender: PeerId, payload: Payload) -> None:
        if not isinstance(payload, SimHeartbeat):
            self._heard.append(payload)
            if isinstance(payload, Accept):
                self._collect(sender, payload.vote)
        super().receive(sender, payload)
        if isinstance(payload, Outcome | Prepare | Propose) and Lie.HASTE in self.lies:
            self._hurry()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Announce(Prepare() | Propose() as message):
                for peer in self.state.voters:
                    if peer != self.me:
                        self._carry_out(Send(peer, message))
            case Send(peer, Propose(promises=(_, *_)) as proposal) if Lie.BENT_PROOFS in self.lies:
                self._send(peer, self._with_bent_proofs(proposal))
            case Send(peer, Propose(_, Entry(_, _, Commit(state=str())) as entry) as proposal) if (
                Lie.STATES in self.lies
            ):
                self._send(peer, self._of_another_state(entry, proposal))
            case Send(peer, Propose(_, Entry(_, _, Roster())) as proposal) if (
                Lie.USURPATION in self.lies
            ):
                self._send(peer, self._without_others(proposal))
            case Send(peer, Propose() as proposal) if Lie.TWINS in self.lies:
                self._send(peer, self._for_half(peer, proposal, signed=True))
            case Send(peer, Propose() as proposal) if Lie.DENIALS in self.lies:
                self._send(peer, self._for_half(peer, proposal, signed=False))
            case Announce(Outcome(certified)) if Lie.DENIALS in self.lies:
                self._tell_all(Outcome(self._without_me(certified)))
            case Send(peer, Promise() as promise) if self._invents(promise):
                self._send(peer, self._inventive(promise))
            case Send(peer, Promise() as promise) if Lie.HIDDEN_VOTES in self.lies:
                self._send(peer, self._forgetful(promise))
            case Send(peer, Accept(vote)) if Lie.DOUBLE_VOTES in self.lies:
                super()._carry_out(effect)
                self._send(peer, Accept(self._sign(vote.height, vote.round, digest("another"))))
            case _:
                super()._carry_out(effect)

    def gossip(self) -> None:
        super().gossip()
        if Lie.HASTE in self.lies:
            self._hurry()
        if self._random.random() >= MISCHIEF:
            return
        if Lie.FORGERIES in self.lies:
            self._random.choice((self._forge, self._usurp))()
        if Lie.REPLAYS in self.lies:
            self._replay()

    # ── two entries in one round ─────────────────────────────────────────────────────────────────

    def _for_half(self, peer: PeerId, proposal: Propose, *, signed: bool) -> Propose:
        """Return the proposal for `peer`: every second voter gets a different entry. If that entry
        is not `signed`, it does not prove anything against the liar."""
        twin = self._twin(proposal.entry)
        if twin is None or self.state.voters.index(peer) % 2:
            return proposal
        return self._bent(proposal, twin) if signed else replace(proposal, entry=twin)

    def _bent(self, proposal: Propose, entry: Entry) -> Propose:
        """Return the proposal with `entry` instead of its own entry, and with a valid signature."""
        return replace(proposal, entry=entry, signature=self._hope_for(entry, proposal.round))

    def _hope_for(self, entry: Entry, round: int) -> bytes:
        """Vote for `entry`, begin to collect the votes of others, and return the vote's
        signature.
        """
        own = self._sign(entry.height, round, entry.digest).signature
        if entry.digest not in self._twins:
            self._twins[entry.digest] = entry
            self._votes[entry.digest] = {self.me: own}
        return own

    def _without_me(self, certified: Certified) -> Certified:
        """Return the certificate without the liar's own vote."""
        entry, certificate = certified.entry, certified.certificate
        votes = {voter: signed for voter, signed in certificate.votes if voter != self.me}
        electorate = self._electorate(entry)
        return electorate.certified(certificate.round, entry, votes)

    def _twin(self, entry: Entry) -> Entry | None:
        """Return a different valid entry for the same height, or None."""
        value = entry.value
        if not isinstance(value, Roster) or len(value.participants) < 2:
            return None
        parts = value.participants
        return replace(entry, value=replace(value, participants=(*parts[1:], parts[0])))

    def _collect(self, sender: PeerId, vote: Vote) -> None:
        votes = self._votes.get(vote.entry)
        if votes is None or not verify(sender, vote.message, vote.signature):
            return
        votes[sender] = vote.signature
        entry = self._twins[vote.entry]
        electorate = self._electorate(entry)
        if len(votes) > 1 and electorate.reached(votes.keys() & electorate.names):
            certified = electorate.certified(vote.round, entry, votes)
            for peer in sorted(votes.keys() - {self.me}):
                self._send(peer, Outcome(certified))

    def _electorate(self, entry: Entry) -> Electorate:
        voters, sign = self.state.voters, signer(self.me)
        return Electorate(
            self._rules, self.state.line, entry.height, entry.parent, voters, self.me, sign, verify
        )

    def _of_another_state(self, entry: Entry, proposal: Propose) -> Propose:
        """Return the proposal with the digest of a state that does not exist. No node could start
        from that state."""
        assert isinstance(entry.value, Commit)
        value = replace(entry.value, state=digest("no such state"))
        return self._bent(proposal, replace(entry, value=value))

    def _without_others(self, proposal: Propose) -> Propose:
        """Return the proposal with only as many voters in the roster as a decision needs."""
        entry, voters = proposal.entry, self.state.voters
        assert isinstance(entry.value, Roster)
        others = [voter for voter in entry.value.voters if voter != self.me and voter in voters]
        kept = {self.me, *others[: len(voters) // 2]}
        parts = tuple(part for part in entry.value.participants if part.peer in kept)
        staying = tuple(voter for voter in voters if voter in kept)
        schedule = entry.value.schedule if parts else "ring"
        names = replace(entry.value, participants=parts, schedule=schedule)
        roster = replace(names, voters=staying, learners=())
        return self._bent(proposal, replace(entry, value=roster))

    def _hurry(self) -> None:
        """Interrupt the rounds of others: prepare a later round of its own, and tell the others
        that their rounds are over."""
        state = self.state
        if self.me not in state.voters or self.clock.now < self._hurried_at + HURRY_S:
            return
        self._hurried_at = self.clock.now
        turn = (state.voters.index(self.me) - state.height - 1) % len(state.voters)
        self._round += len(state.voters)
        self._tell_all(Prepare(state.height + 1, turn + self._round))
        for round in range(len(state.voters)):
            self._tell_all(Refused(state.height + 1, round, turn + self._round, "it is mine"))

    # ── invalid promises ─────────────────────────────────────────────────────────────────────────

    def _with_bent_proofs(self, proposal: Propose) -> Propose:
        """Return a proposal with invalid promises: promises of strangers, or its own claim of an
        invented entry. The claim is for this round, or it is unsigned and for the previous round.
        """
        round, others = proposal.round, [it for it in proposal.promises if it.voter != self.me]
        kind = self._random.choice(("strangers", "this round", "unsigned"))
        if kind == "strangers":
            promises = [self._promised(self.me, proposal.entry, round, None)]
            for voter in self.state.voters:
                stranger = PeerId(f"{_SOMEBODY}-{voter}")
                promises.append(self._promised(stranger, proposal.entry, round, None))
            return replace(proposal, promises=tuple(promises))
        entry = self._invented()
        own = self._hope_for(entry, round)
        claim = Accepted(round, entry, own)
        if kind == "unsigned":
            claim = Accepted(round - 1, entry, b"signed by nobody")
        promises = [self._promised(self.me, entry, round, claim), *others]
        return replace(proposal, entry=entry, signature=own, promises=tuple(promises))

    def _promised(
        self, voter: PeerId, entry: Entry, round: int, claim: Accepted | None
    ) -> PromiseProof:
        """Return a promise of `voter`, which is the liar itself or an invented stranger."""
        signing = replace(self._electorate(entry), me=voter, sign=signer(voter))
        return proof_of(voter, signing.promise(round, claim))

    # ── other lies ───────────────────────────────────────────────────────────────────────────────

    def _forgetful(self, promise: Promise) -> Promise:
        """Half of the time, return a promise that denies the entry that the liar has accepted."""
        if promise.accepted is None or self._random.random() < 0.5:
            return promise
        parent = promise.accepted.entry.parent
        entry = Entry(promise.height, parent, Skip(self.state.step))
        return self._electorate(entry).promise(promise.round, None)

    def _invents(self, promise: Promise) -> bool:
        return Lie.INVENTED_VOTES in self.lies and self._random.random() < 0.5

    def _inventive(self, promise: Promise) -> Promise:
        """Return a promise that claims an invented entry, accepted in the previous round."""
        entry = self._invented()
        own = self._sign(entry.height, promise.round - 1, entry.digest)
        claim = Accepted(promise.round - 1, entry, own.signature)
        return self._electorate(entry).promise(promise.round, claim)

    def _forge(self) -> None:
        """Send an invented entry with false signatures, or with those of a different entry."""
        state, chain = self.state, self.ledger.chain
        entry = self._invented()
        names = sorted(state.voters)
        votes = tuple((name, signature_of(self.me, name.encode())) for name in names)
        certificate = Certificate(entry.height, 0, entry.digest, votes)
        if chain:
            real = chain[-1].certificate
            old = replace(certificate, votes=real.votes)
            certificate = self._random.choice((certificate, old, real))
        self._tell_all(Outcome(Certified(entry, certificate)))

    def _usurp(self) -> None:
        """Propose an invented entry in a later round, without the required promises."""
        state, entry = self.state, self._invented()
        if self.me in state.voters:
            electorate = self._electorate(entry)
            rounds = range(1, 1 + len(state.voters))
            round = next(it for it in rounds if electorate.proposer(it) == self.me)
            own = self._hope_for(entry, round)
            self._tell_all(Propose(round, entry, own))

    def _invented(self) -> Entry:
        state = self.state
        value: Value = Skip(state.step)
        if state.roster is None:
            learners = dict.fromkeys((*state.learners, _SOMEBODY))
            value = Roster(state.step, state.attempt, state.voters, tuple(learners))
        elif self._random.random() < 0.5:
            value = Commit(state.step, state.roster.attempt, digest("no such update"))
        return Entry(state.height + 1, state.head, value)

    def _replay(self) -> None:
        """Send an old message again, unchanged or as its own vote for the current height."""
        if not self._heard:
            return
        message = self._random.choice(self._heard)
        if isinstance(message, Accept):
            message = Accept(replace(message.vote, height=self.state.height + 1, voter=self.me))
        self._send(self._random.choice(self._world.others(self.me)), message)

    def _sign(self, height: int, round: int, entry: Digest) -> Vote:
        vote = Vote(self.state.line, height, round, entry, self.me, b"")
        return replace(vote, signature=signature_of(self.me, vote.message))


_SOMEBODY = PeerId("nobody-knows-me")
