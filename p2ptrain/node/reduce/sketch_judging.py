"""Judge the contributions to an average before this node reports it.

The statements of all participants are collected beside the reduce (`sketch_exchange`). After the
reduce this node waits for the missing ones, up to a deadline, and applies the rules of
`p2ptrain.proofs.sketch_rules`. A participant that breaks a rule becomes a suspect, as if the reduce
had failed because of it. The members then repeat the attempt without it (the ledger's SPEC.md,
S13).

The rule about sums is a tolerance, and does not say who broke it. So it accuses nobody. It only
decides whether a part of the average is recomputed from the contributions, which is exact
(`exact_part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from p2ptrain.archive.expected_lengths import judged_of, knows_lengths
from p2ptrain.archive.outer_step import OuterStep
from p2ptrain.errors import ReduceAborted
from p2ptrain.ids import PeerId
from p2ptrain.kernels import BadScale, Sums
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.names import label
from p2ptrain.node.reduce.exact_part import fault_in_part
from p2ptrain.node.reduce.sketch_exchange import cuts_of
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.proofs.sketch_collection import SketchBook
from p2ptrain.proofs.sketch_parts import part_of, sketch_of_bytes, turns
from p2ptrain.proofs.sketch_rules import (
    Finding,
    Judged,
    accused_by,
    hides_a_share,
    judge,
    unlike_update,
)
from p2ptrain.proofs.sketches import unit_exponent_of
from p2ptrain.suggested_command import to_paste

WAIT_S = 10.0
ELEMENTS_PER_S = 1e6
"""How long to wait for statements after the reduce: `WAIT_S`, and the time in which a machine
computes a sketch that makes only this many elements a second. An idle core makes a thousand times
as many. A slow machine must never look like a liar."""

WARNING = "contribution"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The facts of an attempt that its judges need. `weights` are those of the reduce."""

    outer_step: OuterStep
    roster: Roster
    book: SketchBook
    weights: Sequence[int]

    def failed(self, suspects: Sequence[PeerId], reason: str) -> ReduceAborted:
        return ReduceAborted(self.roster.step, self.roster.attempt, suspects, reason)

    @property
    def where(self) -> dict[str, int]:
        return {"step": self.roster.step, "attempt": self.roster.attempt}

    @property
    def roundings(self) -> int:
        """How often a sum is rounded on its way; see `unlike_update`."""
        return 2 if self.roster.schedule == "direct" else len(self.roster.peers)


async def judge_average(context: Context, attempt: Attempt, payload: bytearray) -> None:
    """Judge the contributions to the average `payload`. Return if nothing is wrong, or if this node
    knows too little to say. Raises ReduceAborted: something is wrong."""
    begun_s = context.now()
    if not await _is_complete(context, attempt):
        return
    collected_s = context.now()
    _accuse(context, attempt, await trio.to_thread.run_sync(_findings, attempt))
    unlike = list[tuple[int, Finding]]()
    for parts in turns(cuts_of(attempt.outer_step, attempt.roster)):
        unlike += await trio.to_thread.run_sync(_unlike_parts, attempt, parts, payload)
    if unlike:
        await _explain(context, attempt, unlike, payload)
    context.journal.write(
        "judged",
        **attempt.where,
        waited_s=collected_s - begun_s,
        seconds=context.now() - collected_s,
    )


async def _is_complete(context: Context, attempt: Attempt) -> bool:
    """Wait until all statements are here. Return False if they are not, and nobody is at fault.
    Raises ReduceAborted: some participants withhold theirs, or lie."""
    slow_s = attempt.outer_step.update.numel / ELEMENTS_PER_S
    deadline_s = context.now() + WAIT_S + slow_s
    while True:
        decision = attempt.book.decision(context.now(), deadline_s)
        if decision.outcome == "fault":
            raise attempt.failed(decision.suspects, decision.reason)
        if decision.outcome == "unknown":
            context.journal.write("unjudged", **attempt.where, reason=decision.reason)
            return False
        if decision.outcome == "judge":
            return True
        await context.changes.wait(at_most_s=max(0.0, deadline_s - context.now()))


def _accuse(context: Context, attempt: Attempt, findings: Sequence[Finding]) -> None:
    """Raise ReduceAborted if the findings accuse somebody. If they accuse this node, tell its
    user."""
    peers = attempt.book.peers
    for each in findings:
        context.journal.write(
            "sketch-finding",
            **attempt.where,
            rule=each.rule,
            peers=[peers[who] for who in each.participants],
            value=each.value,
            limit=each.limit,
        )
    accused = [peers[who] for who in accused_by(findings, len(peers))]
    own = [it for it in findings if context.me in {peers[who] for who in it.participants}]
    if context.me in accused:
        context.alerts.show(WARNING, _caution(context, attempt, own[0]))
    else:
        context.alerts.clear(WARNING)
    if accused:
        words = "; ".join(_words(each, peers) for each in findings)
        raise attempt.failed(accused, words)


def _words(finding: Finding, peers: Sequence[PeerId]) -> str:
    names = " and ".join(label(peers[who]) for who in finding.participants)
    return f"the contribution of {names} breaks the rule about its {finding.rule}: {finding.words}"


def _caution(context: Context, attempt: Attempt, finding: Finding) -> Caution:
    what = f"the work of this node for outer step {attempt.roster.step} is odd: {finding.words}"
    fix = f"check the GPU and its memory; {to_paste(context.home.root, 'doctor')} checks the rest"
    return Caution("CONTRIBUTION-ODD", what, fix)


def _findings(attempt: Attempt) -> list[Finding]:
    """Return what the rules find in the statements about the whole contributions."""
    whole = _judged(attempt, [each.sums for each in attempt.book.stated])
    return judge(whole, lengths=knows_lengths(attempt.outer_step))


def _judged(attempt: Attempt, sums: list[Sums]) -> list[Judged]:
    return judged_of(attempt.outer_step, attempt.book.participants, attempt.weights, sums)


def _unlike_parts(attempt: Attempt, parts: range, payload: bytearray) -> list[tuple[int, Finding]]:
    """Return the parts in which the statements differ from the average by more than rounding
    explains."""
    found = []
    for part in parts:
        stated = _judged(attempt, [each.sums_of_part(part) for each in attempt.book.stated])
        if (finding := _unlike(attempt, stated, part, payload)) is not None:
            found.append((part, finding))
    return found


def _unlike(attempt: Attempt, parts: list[Judged], part: int, payload: bytearray) -> Finding | None:
    outer_step, seed = attempt.outer_step, attempt.book.seed
    assert seed is not None
    codec, cuts = outer_step.codec, cuts_of(outer_step, attempt.roster)
    if hides_a_share(parts, codec.name, attempt.roundings):
        return None
    made, where = part_of(codec, memoryview(payload), cuts, part), (cuts[part], cuts[part + 1])
    try:
        unit = unit_exponent_of(outer_step.influence_max)
        update = sketch_of_bytes(codec, made, *where, seed, unit)
    except (BadScale, ValueError):
        return None  # S14 bounds the elements of an update, in another way.
    return unlike_update(parts, update, codec.name, attempt.roundings)


async def _explain(
    context: Context, attempt: Attempt, unlike: list[tuple[int, Finding]], payload: bytearray
) -> None:
    """Find out exactly why parts differ. Only the one that differs most is fetched, so that this
    never costs more than one part of each contribution. A liar could hide a wrong part only by
    lying more about another one. Raises ReduceAborted, unless it was only rounding."""
    part, worst = max(unlike, key=lambda found: found[1].value / found[1].limit)
    told = {"rule": worst.rule, "value": worst.value, "limit": worst.limit, "parts": len(unlike)}
    context.journal.write("sketch-finding", **attempt.where, part=part, **told)
    suspects, reason = await fault_in_part(
        context, attempt.outer_step, attempt.roster, attempt.book, attempt.weights, part, payload
    )
    context.journal.write(
        "sum-explained", **attempt.where, part=part, suspects=suspects, reason=reason
    )
    if reason:
        raise attempt.failed(suspects, reason)
