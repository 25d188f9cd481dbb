"""Check the rules about auditors and findings (SPEC.md, S16, S17 and A1 to A6).

The checkers follow the auditors, claims and exclusions on their own. They share no code with the
ledger except for the values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.findings import Finding, Verdict
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Commit, Roster, Skip
from p2ptrain.simulation.checkers.troubles import Troubles
from p2ptrain.simulation.checkers.watching import Decision, Watch
from p2ptrain.simulation.disk import verify
from p2ptrain.simulation.liars.audit_liar import AuditLiar

DRAWN, NEEDED, JUDGES = 3, 2, 5
OPEN_STEPS, OUT_STEPS = 4, 8


@dataclass(slots=True)
class CommittedClaim:
    """A claim in an update: of outer step `step`, whose Commit drew the auditors in `three`. It was
    committed at `at_s`."""

    step: int
    claim: Digest
    three: frozenset[PeerId]
    at_s: float
    judged: bool = False


@dataclass(slots=True)
class Excluded:
    """An exclusion until outer step `until`. The verdict at `at_s` drew `judges` for the appeal."""

    until: int
    claim: Digest
    judges: frozenset[PeerId]
    draw: Digest
    at_s: float


@dataclass(slots=True)
class Followed:
    """The auditors, claims and exclusions according to the entries, without the ledger's state."""

    auditors: frozenset[PeerId] = frozenset()
    claims: dict[tuple[PeerId, Digest], CommittedClaim] = field(default_factory=dict)
    excluded: dict[PeerId, Excluded] = field(default_factory=dict)

    def roster(self, roster: Roster) -> None:
        named = self.auditors if roster.auditors is None else frozenset(roster.auditors)
        self.auditors = named.intersection(roster.members)

    def commit(self, roster: Roster, commit: Digest, at_s: float) -> None:
        for part in roster.participants:
            three = lowest(commit, part.peer, self.auditors - {part.peer}, DRAWN)
            three = three if len(three) == DRAWN else frozenset()
            if part.claim is not None:
                made = CommittedClaim(roster.step, part.claim, three, at_s)
                self.claims[part.peer, commit] = made

    def step_ends(self, step: int) -> None:
        """Forget the exclusions that end before outer step `step`."""
        self.excluded = {peer: it for peer, it in self.excluded.items() if it.until > step}

    def verdict(self, verdict: Verdict, digest: Digest, at_s: float) -> None:
        for peer in sorted({each.peer for each in verdict.findings}):
            if self.excluded.pop(peer, None) is not None:
                continue
            said = [each for each in verdict.findings if each.peer == peer]
            known = self.claims.get((peer, said[0].draw))
            if known is not None:
                known.judged = True
                others = self.auditors - known.three - {peer}
                judges = lowest(digest, peer, others, JUDGES)
                until = verdict.step + OUT_STEPS
                self.excluded[peer] = Excluded(until, known.claim, judges, digest, at_s)


def lowest(draw: Digest, peer: PeerId, names: Iterable[PeerId], count: int) -> frozenset[PeerId]:
    """Return the `count` names with the lowest hashes: a draw that is made by hand."""

    def number(name: PeerId) -> int:
        text = "p2ptrain-auditor/1\n" + json.dumps([draw, peer, name], separators=(",", ":"))
        return int(hashlib.sha256(text.encode()).hexdigest(), 16)

    return frozenset(sorted(names, key=number)[:count])


def is_signed(finding: Finding) -> bool:
    parts = f'"{finding.draw}","{finding.peer}",{finding.step},"{finding.claim}","{finding.found}"'
    return verify(finding.auditor, f"p2ptrain-finding/1\n[{parts}]".encode(), finding.signature)


@dataclass(slots=True)
class Following(Watch):
    """The base of these checkers: it follows the entries, and calls `judge` before each one."""

    known: Followed = field(default_factory=Followed, init=False)

    def on_decision(self, decision: Decision) -> None:
        if not decision.is_first:
            return
        self.judge(decision)
        known, digest, value = self.known, decision.certified.entry.digest, decision.value
        if isinstance(value, Verdict):
            known.verdict(value, digest, decision.at_s)
        elif isinstance(value, Roster):
            known.roster(value)
        elif isinstance(value, Commit) and decision.before.roster is not None:
            known.commit(decision.before.roster, digest, decision.at_s)
        if isinstance(value, Commit | Skip):
            known.step_ends(value.step + 1)
        self.judge_after(decision)

    def judge(self, decision: Decision) -> None:
        """Check an entry before `known` follows it."""

    def judge_after(self, decision: Decision) -> None:
        """Check an entry after `known` has followed it."""


@dataclass(slots=True)
class VerdictsAreFounded(Following):
    """S16, A4, A6: a verdict has enough signed findings of drawn auditors about a claim that can be
    judged, and an honest peer is excluded only if two of its three auditors are liars."""

    liars: frozenset[PeerId] = frozenset()

    def judge(self, decision: Decision) -> None:
        value = decision.value
        if not isinstance(value, Verdict):
            return
        for peer in sorted({each.peer for each in value.findings}):
            said = [each for each in value.findings if each.peer == peer]
            fault = self._appeal(peer, said) if peer in self.known.excluded else ""
            if peer not in self.known.excluded:
                fault = self._first(peer, said, value.step)
            if fault:
                self.object(f"verdict {decision.after.height} about {peer}: {fault}")

    def _first(self, peer: PeerId, said: list[Finding], step: int) -> str:
        known = self.known.claims.get((peer, said[0].draw))
        if known is None or known.judged or known.step + OPEN_STEPS < step:
            return "this claim cannot be judged"
        against = {
            it.auditor
            for it in said
            if it.found != "sound" and (it.draw, it.claim) == (said[0].draw, known.claim)
            if is_signed(it)
        }
        against &= known.three
        if len(against) < NEEDED:
            return f"only {len(against)} of the drawn auditors found a fault"
        if peer not in self.liars and len(self.liars & known.three) < NEEDED:
            return "it is honest, and most of its auditors are"
        return ""

    def _appeal(self, peer: PeerId, said: list[Finding]) -> str:
        out = self.known.excluded[peer]
        sound = {
            it.auditor
            for it in said
            if it.found == "sound" and (it.draw, it.claim) == (out.draw, out.claim)
            if is_signed(it)
        }
        count = len(sound & out.judges)
        if 2 * count <= len(out.judges):
            return f"only {count} of {len(out.judges)} judges say that its claim is sound"
        return ""


@dataclass(slots=True)
class ExclusionsAreKept(Following):
    """A5: excluded peers do not take part in averages for eight outer steps, unless too few others
    take part. The state names exactly the peers that are excluded."""

    participants_min: int = 1

    def judge(self, decision: Decision) -> None:
        if not isinstance(decision.value, Roster):
            return
        out = [peer for peer in decision.value.peers if peer in self.known.excluded]
        others = len(decision.value.peers) - len(out)
        if out and others >= self.participants_min:
            self.object(f"{out[0]} is excluded, but takes part at {decision.after.height}")

    def judge_after(self, decision: Decision) -> None:
        ours, theirs = set(self.known.excluded), set(decision.after.excluded)
        if ours != theirs:
            text = f"at {decision.after.height}, {sorted(ours)} should be excluded"
            self.object(f"{text}, and {sorted(theirs)} are")


@dataclass(slots=True)
class VerdictsTouchNoVote(Watch):
    """S17: a verdict changes neither the members nor their ranks, leases and claims."""

    def on_decision(self, decision: Decision) -> None:
        before, after = decision.before, decision.after
        if not isinstance(decision.value, Verdict):
            return
        for name in ("voters", "learners", "since", "proven", "lease_book", "auditors", "step"):
            if getattr(before, name) != getattr(after, name):
                self.object(f"verdict {after.height} changes {name}")


@dataclass(slots=True)
class AuditorsAreFair(Following):
    """A1: in the first round, a roster drops no auditor that is healthy and offers capacity, and
    adds none that never offered any. The simulated peers know what they offer."""

    liars: frozenset[PeerId] = frozenset()
    troubles: Troubles | None = None
    offering: Mapping[PeerId, float] = field(default_factory=dict)
    """For each peer that ever offered capacity, the time since when it does, or infinity. The world
    keeps it up to date."""

    def judge(self, decision: Decision) -> None:
        value = decision.value
        if not isinstance(value, Roster) or value.auditors is None:
            return
        honest = decision.certified.certificate.voters - self.liars
        if decision.certified.certificate.round > 0 or not honest or self.troubles is None:
            return
        for peer in self.known.auditors.intersection(value.members) - set(value.auditors):
            steady_s = decision.at_s - KNOWN_S
            is_well = self.troubles.since.get(peer, decision.at_s) < steady_s
            if is_well and self.offering.get(peer, decision.at_s) < steady_s:
                self.object(f"{peer} is dropped as an auditor at {decision.after.height}")
        for peer in set(value.auditors) - self.known.auditors - self.offering.keys():
            self.object(f"{peer} audits from {decision.after.height} on and never offered to")


KNOWN_S = 10.0
"""Seconds after which all peers know of an offer, although some heartbeats are lost."""


@dataclass(slots=True)
class FakersAreExcluded(Following):
    """A8: a faked contribution excludes its peer soon, if at least two of the three auditors are
    honest and stay up. An honest peer that is excluded returns soon, if most judges are honest and
    stay up."""

    liars: frozenset[PeerId] = frozenset()
    nodes: Mapping[PeerId, AuditLiar] = field(default_factory=dict)
    troubles: Troubles | None = None
    told: set[tuple[PeerId, Digest]] = field(default_factory=set)

    def judge(self, decision: Decision) -> None:
        if not isinstance(decision.value, Roster) or not decision.value.participants:
            return
        for (peer, draw), known in self.known.claims.items():
            late = known.step + FOUND_STEPS < decision.value.step <= known.step + OPEN_STEPS
            late = late and known.at_s + FOUND_S < decision.at_s
            if not late or known.judged or peer in self.known.excluded:
                continue
            if (
                self._is_faked(peer, known.claim)
                and self._honest(known.three, known.at_s, peer) >= 2
            ):
                self._object_once(peer, draw, f"{peer} faked step {known.step} and takes part")
        for peer, out in self.known.excluded.items():
            if peer in self.liars or out.at_s + FOUND_S > decision.at_s:
                continue
            if 2 * self._honest(out.judges, out.at_s, peer) > len(out.judges):
                self._object_once(peer, out.draw, f"{peer} is honest and stays excluded")

    def _is_faked(self, peer: PeerId, claim: Digest) -> bool:
        node = self.nodes.get(peer)
        return node is not None and claim in node.faked

    def _honest(self, drawn: frozenset[PeerId], since_s: float, claimant: PeerId) -> int:
        """Return how many of `drawn` are honest and, as `claimant`, have been up since."""
        assert self.troubles is not None
        up = self.troubles.since
        if up.get(claimant, since_s + 1) > since_s:
            return 0
        return sum(1 for it in drawn - self.liars if up.get(it, since_s + 1) <= since_s)

    def _object_once(self, peer: PeerId, draw: Digest, text: str) -> None:
        if (peer, draw) not in self.told:
            self.told.add((peer, draw))
            self.object(text)


FOUND_STEPS = 2
FOUND_S = 15.0
"""A fault leads to a verdict within this many outer steps and seconds: an audit takes up to 1.5 s,
a lost finding is repeated after 6 s, and liars that propose may cost some rounds."""


def checkers_of_audits(
    rules: Rules,
    liars: frozenset[PeerId],
    troubles: Troubles,
    nodes: Mapping[PeerId, AuditLiar],
    offering: Mapping[PeerId, float],
) -> list[Watch]:
    return [
        VerdictsAreFounded(liars=liars),
        ExclusionsAreKept(participants_min=rules.participants_min),
        VerdictsTouchNoVote(),
        AuditorsAreFair(liars=liars, troubles=troubles, offering=offering),
        FakersAreExcluded(liars=liars, nodes=nodes, troubles=troubles),
    ]
