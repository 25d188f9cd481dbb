"""A participant that lies about its claims and keeps all other rules.

It shows different claims to different peers, changes them after the roster, repeats old ones, and
proposes rosters that misquote the claims of others.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any, TypeGuard

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Entry, Participant, Roster
from p2ptrain.ledger.messages.claim_statement import ClaimStatement
from p2ptrain.ledger.messages.effects import Effect, Send
from p2ptrain.ledger.messages.messages import Propose
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.simulation.disk import digest, signer
from p2ptrain.simulation.liars.liar import Liar
from p2ptrain.simulation.network import Payload, SimHeartbeat

SERIALS_APART = 32
"""The liar multiplies its serial numbers by this, so that it has unused ones for other claims."""


class ClaimTrick(Enum):
    SPLIT = "different claims with one serial number for different peers"
    NUMBERS = "different numbers of tokens with one serial number for different peers"
    SERIALS = "a claim and serial number of its own for each peer"
    CHANGED = "a different claim with the same serial number, once a roster names the first"
    NEWER = "a newer claim, once a roster names the first"
    BACK = "a newer claim, and after it an older one for the same step"
    OLD = "the claim of its first step, signed for each step"
    COPIED = "the claim of another peer, signed as its own"
    UNSIGNED = "claims without a valid signature"
    UNCLAIMED = "reports whose numbers are not those of the signed claim"
    ROSTERS = "rosters with invented, missing or exchanged claims"


class ClaimLiar(Liar):
    """It uses one to three tricks, so that a clumsy one does not always hide a clever one."""

    def __init__(self, *place: Any, **rest: Any) -> None:
        super().__init__(*place, **rest)
        self.lies = frozenset()
        count = self._random.randint(1, 3)
        self.tricks = frozenset(self._random.sample(list(ClaimTrick), count))
        self._first: Digest | None = None

    def gossip(self) -> None:
        super().gossip()
        if ClaimTrick.BACK in self.tricks and _is_claim(self._ready):
            super()._tell_all(SimHeartbeat(self.me, (self._older(self._ready),)))

    def _holds(self, mine: Participant) -> bool:
        return True

    def _tell_all(self, payload: Payload) -> None:
        if not isinstance(payload, SimHeartbeat):
            return super()._tell_all(payload)
        for number, peer in enumerate(self._world.others(self.me)):
            events = (self._told(it, number) if _is_claim(it) else it for it in payload.events)
            self._send(peer, replace(payload, events=tuple(events)))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, Propose(_, Entry(_, _, Roster() as roster) as entry) as proposal) if (
                roster.participants and ClaimTrick.ROSTERS in self.tricks
            ):
                value = self._misquoting(roster, entry.height)
                self._send(peer, self._bent(proposal, replace(entry, value=value)))
            case _:
                super()._carry_out(effect)

    # ── claims of its own ────────────────────────────────────────────────────────────────────────

    def _told(self, ready: Ready, number: int) -> Ready:
        """Return the report for the receiver with this number."""
        said = ready.claim
        assert said is not None
        self._first = self._first or said.claim
        serial, claim, tokens = said.serial * SERIALS_APART, said.claim, said.tokens
        roster, tricks = self.state.roster, self.tricks
        if ClaimTrick.OLD in tricks:
            claim = self._first
        if ClaimTrick.COPIED in tricks:
            claim = self._copied() or claim
        if ClaimTrick.SPLIT in tricks and number % 2:
            claim = digest(f"another {claim}")
        if ClaimTrick.NUMBERS in tricks and number % 2:
            tokens -= 1
        if ClaimTrick.SERIALS in tricks:
            serial, claim = serial + number, digest(f"{number} {claim}")
        if roster is not None and self.me in roster.peers:
            if ClaimTrick.CHANGED in tricks:
                claim = digest(f"after the roster {claim}")
            if ClaimTrick.NEWER in tricks:
                serial, claim = serial + SERIALS_APART // 2, digest(f"newer {claim}")
        signed = self._signed(replace(said, serial=serial, claim=claim, tokens=tokens))
        told = Ready.of(self.me, signed)
        return replace(told, tokens=1) if ClaimTrick.UNCLAIMED in tricks else told

    def _older(self, ready: Ready) -> Ready:
        """Return a report with an older claim than `_told` returns."""
        said = ready.claim
        assert said is not None
        serial, claim = said.serial * SERIALS_APART - 1, digest(f"older {said.claim}")
        return Ready.of(self.me, self._signed(replace(said, serial=serial, claim=claim)))

    def _signed(self, said: ClaimStatement) -> ClaimStatement:
        if ClaimTrick.UNSIGNED in self.tricks:
            return said
        return replace(said, signature=signer(self.me)(said.message(self.state.line, 0)))

    def _copied(self) -> Digest | None:
        reports = self.ledger.reports.ready.values()
        return next((it.named for it in reports if it.peer != self.me and it.named), None)

    # ── rosters ──────────────────────────────────────────────────────────────────────────────────

    def _misquoting(self, roster: Roster, height: int) -> Roster:
        parts = list(roster.participants)
        victim = next((n for n, it in enumerate(parts) if it.peer != self.me), 0)
        other = parts[victim - 1].claim
        claims = (digest(f"invented {height}"), None, other)
        parts[victim] = replace(parts[victim], claim=claims[height % 3])
        return replace(roster, participants=tuple(parts))


def _is_claim(event: object) -> TypeGuard[Ready]:
    return isinstance(event, Ready) and event.claim is not None


def last_founders(rules: Rules, most: int) -> tuple[PeerId, ...]:
    """Return the lying founders: as many as the profile wants, as long as the honest ones are a
    quorum. Otherwise silent liars could stop the run, and the simulation would not test anything.
    """
    spare = 3 if rules.quorum == "two-thirds" else 2
    count = min(most, (len(rules.founders) - 1) // spare)
    return rules.founders[len(rules.founders) - count :]
