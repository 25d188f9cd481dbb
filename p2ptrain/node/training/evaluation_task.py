"""Measure the loss of θ on held-out blocks every few outer steps, together with other members.

A member's heartbeats contain its newest report until there is a newer one, so a lost heartbeat does
no harm. A node that learns of a commit late still finds the other members' reports in their newest
heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.node.state.context import Context
from p2ptrain.node.training import lease_data
from p2ptrain.peers.heartbeat import LOSS_MAX_NATS, Heartbeat, ValidationReport
from p2ptrain.peers.validation_tally import ValidationShare, divide_blocks

LOOK_S = 5.0


def shares(context: Context, step: int) -> Mapping[PeerId, ValidationShare]:
    """Return the share of the held-out blocks on which each peer evaluates the θ of outer step
    `step`. The ledger must have reached that step.

    The participants of the newest committed update evaluate this θ. Before the first update, the
    learners (members without a vote) of the run's first roster do, since founders are often seeds,
    which cannot evaluate it. If that roster has no learners, the founders do.
    """
    peers = [each.peer for each in context.ledger.history.newest_participants(step)]
    first = context.ledger.kept.at(1)
    if step == 0 and first is not None and isinstance(first.entry.value, Roster):
        peers = list(first.entry.value.learners or first.entry.value.voters)
    return divide_blocks(context.manifest.data.validation_blocks, peers, step)


def is_measured(context: Context) -> bool:
    """Return whether θ at the ledger's head must be evaluated: every few steps, and at the end."""
    state = context.ledger.snapshot
    return state.phase is Phase.ENDED or state.step % context.manifest.policy.evaluate_every == 0


def own_share(context: Context) -> tuple[Digest, ...]:
    """Return the held-out blocks on which this node must still evaluate θ at the ledger's head."""
    step, own = context.ledger.snapshot.step, context.trainer.validation.own
    share = shares(context, step).get(context.me) if is_measured(context) else None
    if share is None or (own is not None and own.step == step):
        return ()
    assert context.blobs.data is not None, "training starts after the data index has arrived"
    return context.blobs.data.validation[share.first : share.stop]


async def own_files(context: Context, idle: Callable[[], bool]) -> tuple[str, ...]:
    """Fetch the missing files of our share, and return all of its files. Give up and return () if
    `idle` returns False or the outer step ends: training must not wait for blocks that no peer
    currently has."""
    step, share, files = context.ledger.snapshot.step, own_share(context), list[str]()

    async def fetch() -> None:
        files.extend(await lease_data.paths_of(context, share))

    await context.changes.run_while(lambda: idle() and context.ledger.snapshot.step == step, fetch)
    return tuple(files)


def measured(context: Context, step: int, loss: float, tokens: int) -> None:
    """Publish the trainer's measurement of the θ of outer step `step` on our share. When the
    measurement was requested, `step` was the ledger's current outer step."""
    if not 0 <= loss <= LOSS_MAX_NATS:
        context.journal.write(
            "evaluation-failed", code="NAN", reason=f"the loss of θ is {loss:.3g}"
        )
        return
    share = shares(context, step).get(context.me)
    if share is None:
        return  # The ledger has advanced and was pruned, so this θ is no longer evaluated.
    _begin(context, step)
    report = ValidationReport(step, share.first, share.stop, tokens, loss * tokens)
    context.trainer.validation.own = report
    refused = context.trainer.validation.note_report(context.me, report)
    context.journal.write(
        "share-evaluated",
        step=step,
        first=share.first,
        stop=share.stop,
        loss=loss,
        tokens=tokens,
        refused=refused,
    )
    context.own_heartbeat.send_now()
    context.changes.notify_all()


def note_share_report(context: Context, peer: PeerId, heartbeat: Heartbeat) -> None:
    """Count the measurement that the heartbeat of `peer` reports, if any. Ignore it if `peer` is on
    another branch of the ledger, where θ is different."""
    report = heartbeat.validation
    if report is None or heartbeat.line != context.ledger.snapshot.line:
        return
    if refused := context.trainer.validation.note_report(peer, report):
        context.peers.report_misbehaviour("validation-refused", peer, reason=refused)


async def gather_validation(context: Context) -> None:
    """Until cancelled: start each due measurement, and journal its result once each peer with a
    share has reported, is down, or has had enough time."""
    while True:
        if is_measured(context):
            _begin(context, context.ledger.snapshot.step)
        for each in context.trainer.validation.settled(
            context.now(), lambda peer: peer != context.me and context.peers.is_down(peer)
        ):
            context.journal.write(
                "evaluated" if each.loss is not None else "not-evaluated",
                step=each.step,
                loss=each.loss,
                tokens=each.tokens,
                blocks=each.covered,
                blocks_total=each.blocks,
                missing=each.missing,
                what=str(each),
            )
        await context.changes.wait_calmly(at_most_s=LOOK_S)


def _begin(context: Context, step: int) -> None:
    """Start counting the reports about the θ of `step`, if its shares are known. Include reports
    that have already arrived."""
    who = shares(context, step)
    if who and context.trainer.validation.begin(step, who, context.now()):
        for record in context.peers.table:
            note_share_report(context, record.peer, record.heartbeat)
