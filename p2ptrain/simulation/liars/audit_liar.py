"""A claimant that does not train, and an auditor that lies. All liars of a world help each other.

It keeps all other rules, and shows its claims to everybody. As a proposer, it lies about what it
wants to propose, and then keeps the rules of consensus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.audits import AUDIT_STEPS, Case
from p2ptrain.ledger.chain.findings import Audit, Finding, Found, Verdict
from p2ptrain.ledger.chain.quorum import reached
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Participant, Roster, Value
from p2ptrain.ledger.messages.messages import ShowFinding
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.ledger.paxos.height_policy import Answer, Judgement
from p2ptrain.ledger.policy.policy import Policy
from p2ptrain.simulation.auditing import Auditing, Key
from p2ptrain.simulation.liars.liar import MISCHIEF

FAKES = 0.5
"""Probability that a liar fakes a contribution, if it does so at all."""


LATE_S = 0.3
"""Seconds between two looks whether the claim can still be judged."""


class AuditTrick(Enum):
    FAKE = "contributions that it did not train"
    WITHHOLD = "faked contributions whose data it shows to nobody"
    SOME = "data that it shows only to some auditors"
    ACCUSE = "faults in honest claims that it was drawn to audit"
    CONDEMN = "silence in the appeals of honest peers"
    UNDRAWN = "faults in honest claims that it was not drawn to audit"
    FORGED = "findings in the names of other auditors"
    STALE = "its findings, as if another entry had drawn it"
    VERDICTS = "verdicts with too few findings, or with findings that do not count"
    AGAIN = "verdicts with the findings of an earlier verdict"
    LATE = "its findings only when the claim can hardly be judged any more"
    MUTINY = "false faults, silence in appeals, and no work while honest peers are excluded"
    ROSTERS = "rosters with itself as a participant although it is excluded"
    HANDPICKED = "rosters that make only liars auditors"


@dataclass(slots=True)
class LyingPolicy(Policy):
    """A policy that proposes what `misuse` makes of a value, and accepts that. (If a proposer bends
    its proposals only when it sends them, it signs two entries in one round.)"""

    misuse: Callable[[Value], Value]
    lies: list[Value]

    def complete(self, value: Value) -> Value:
        made = self.misuse(Policy.complete(self, value))
        self.lies.append(made)
        return made

    def judge(self, value: Value, now: float, **how: Any) -> Judgement:
        if value in self.lies:
            return Judgement(Answer.YES, "it is its own lie")
        return Policy.judge(self, value, now, **how)


class AuditLiar(Auditing):
    """All liars of a world use the same two to five tricks. A liar never finds a fault in the claim
    of another liar, and finds it sound in an appeal."""

    def __init__(self, *place: Any, random: Random, **rest: Any) -> None:
        super().__init__(*place, **rest)
        self._random = random
        draw = Random(f"{self._rules.run}/tricks")
        self.tricks = frozenset(draw.sample(list(AuditTrick), draw.randint(2, 5)))
        self.faked: set[Digest] = set()

    # ── as a claimant ────────────────────────────────────────────────────────────────────────────

    def _with_claim(self, ready: Ready | None) -> Ready | None:
        before = self.disk.serial
        claimed = super()._with_claim(ready)
        fakes = self.tricks & {AuditTrick.FAKE, AuditTrick.WITHHOLD}
        is_new = claimed is not None and self.disk.serial > before
        if is_new and claimed and claimed.named and fakes and self._random.random() < FAKES:
            self.faked.add(claimed.named)
        return claimed

    def shows(self, auditor: PeerId, claim: Digest) -> Found:
        if claim in self.faked:
            return "withheld" if AuditTrick.WITHHOLD in self.tricks else "link"
        others = self._world.others(self.me)
        if AuditTrick.SOME in self.tricks and others.index(auditor) % 2:
            return "withheld"
        return super().shows(auditor, claim)

    def _train_or_report(self) -> None:
        sulks = AuditTrick.MUTINY in self.tricks and self.state.excluded.keys() - self._world.liars
        if not sulks or not self._is_outvoted:
            super()._train_or_report()

    @property
    def _is_outvoted(self) -> bool:
        """Whether the honest voters are a quorum. If not, liars can stop the run in any case."""
        voters = self.state.voters
        return reached(self._rules.quorum, voters, set(voters) - self._world.liars)

    # ── as an auditor ────────────────────────────────────────────────────────────────────────────

    def conclude(self, key: Key, case: Case, found: Found) -> None:
        if key[0] in self._world.liars:
            found = "sound"
        elif case.appeal and self.tricks & {AuditTrick.CONDEMN, AuditTrick.MUTINY}:
            return
        elif not case.appeal and self.tricks & {AuditTrick.ACCUSE, AuditTrick.MUTINY}:
            found = self._random.choice(("proof", "link", "outcome", "withheld"))
        late = self.state.step < case.step + AUDIT_STEPS
        if AuditTrick.LATE in self.tricks and late and not case.appeal:
            self._audit(key, LATE_S)
        else:
            super().conclude(key, case, found)

    def gossip(self) -> None:
        super().gossip()
        if self._random.random() < MISCHIEF and (made := self._made_up()) is not None:
            self._tell_all(ShowFinding(made))

    def _made_up(self) -> Finding | None:
        """Return a finding about an honest peer that must not count."""
        kinds = self.tricks & {AuditTrick.UNDRAWN, AuditTrick.FORGED, AuditTrick.STALE}
        chosen = self._honest_claim()
        if not kinds or chosen is None:
            return None
        audit, peer = chosen
        kind = self._random.choice(sorted(kinds, key=lambda it: it.name))
        draw = audit.draw
        if kind is AuditTrick.STALE:
            draw = self._random.choice(self.ledger.chain).entry.digest
        made = self.finding((peer, draw), audit.step, audit.claims[peer], "link")
        if kind is AuditTrick.FORGED:
            return replace(made, auditor=next(it for it in audit.auditors if it != peer))
        return made

    def _honest_claim(self) -> tuple[Audit, PeerId] | None:
        liars = self._world.liars
        pairs = [(it, peer) for it in self.state.audits for peer in it.claims if peer not in liars]
        return self._random.choice(pairs) if pairs else None

    # ── as a proposer ────────────────────────────────────────────────────────────────────────────

    def boot(self) -> None:
        super().boot()
        decide, lies = self.ledger._policy, list[Value]()

        def lying(now: float) -> Policy:
            it = decide(now)
            known = (it.rules, it.state, it.reports, it.arrange, it.wish, it.tally)
            return LyingPolicy(*known, self._misused, lies)

        self.ledger._policy = lying  # type: ignore[method-assign]

    def _misused(self, roster: Value) -> Value:
        """Return what it proposes instead of `roster`."""
        state = self.state
        if not isinstance(roster, Roster) or not self._is_outvoted:
            return roster
        if AuditTrick.VERDICTS in self.tricks and state.phase is Phase.GATHER:
            return self._unfounded(roster)
        if AuditTrick.AGAIN in self.tricks and state.phase is Phase.GATHER:
            return self._repeated(roster)
        if AuditTrick.ROSTERS in self.tricks and roster.participants:
            return self._with_itself(roster)
        if AuditTrick.HANDPICKED in self.tricks:
            liars = tuple(sorted(self._world.liars.intersection(roster.members)))
            return replace(roster, auditors=liars)
        return roster

    def _unfounded(self, roster: Roster) -> Value:
        """Return a verdict against an honest peer with its own finding, and perhaps those of other
        liars, whether or not they were drawn."""
        chosen = self._honest_claim()
        if chosen is None:
            return roster
        (audit, peer), made = chosen, []
        for liar in sorted(self._world.liars - {peer}):
            node = self._world.nodes[liar]
            assert isinstance(node, AuditLiar)
            made.append(node.finding((peer, audit.draw), audit.step, audit.claims[peer], "link"))
        if len(made) == 1 and self.state.height % 2:
            other = next((it for it in audit.auditors if it not in (peer, self.me)), None)
            made += [] if other is None else [replace(made[0], auditor=other)]
        made.sort(key=lambda it: it.auditor)
        return Verdict(self.state.step, tuple(made))

    def _repeated(self, roster: Roster) -> Value:
        """Return the newest verdict about an honest peer once more, if there is one."""
        for certified in reversed(self.ledger.chain):
            value = certified.entry.value
            if not isinstance(value, Verdict) or value.findings[0].found == "sound":
                continue
            if not self._world.liars.intersection(value.peers):
                return replace(value, step=self.state.step)
        return roster

    def _with_itself(self, roster: Roster) -> Roster:
        ready = self._ready
        if self.me in roster.peers or ready is None or ready.step != roster.step:
            return roster
        mine, others = (
            Participant(self.me, ready.tokens, ready.blocks, ready.named),
            list(roster.peers),
        )
        if self._random.random() < 0.5:  # With so few others, it would be allowed to take part.
            others = others[: self._rules.participants_min - 1]
        kept = [each for each in roster.participants if each.peer in others]
        return replace(roster, participants=(*kept, mine))
