"""Measure the loss of θ on held-out blocks every few outer steps. Each member measures a share.

Heartbeats repeat each report until the next one, so a lost report does no harm. A node that learns
late of a commit finds the others' reports in their last heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training import lease_data
from p2ptrain.peers.heartbeat import LOSS_MAX_NATS, Heartbeat, ValidationReport
from p2ptrain.peers.validation_tally import Validation, ValidationShare, divide_blocks

LOOK_S = 5.0


def shares(parts: Parts, step: int) -> Mapping[PeerId, ValidationShare]:
    """Return each peer's share of the measurement of the θ of outer step `step`. The ledger must
    have reached that step.

    The participants of the newest committed update measure it. Before the first update, the
    learners in the run's first roster do, since founders are often seeds. If that roster has no
    learners, the founders do.
    """
    peers = [each.peer for each in parts.history.newest_participants(step)]
    first = parts.ledger.kept.at(1)
    if step == 0 and first is not None and isinstance(first.entry.value, Roster):
        peers = list(first.entry.value.learners or first.entry.value.voters)
    return divide_blocks(parts.manifest.data.validation_blocks, peers, step)


def is_measured(parts: Parts) -> bool:
    """Return whether θ at the ledger's head must be measured: every few steps, and at the end."""
    state = parts.ledger.state
    return state.phase is Phase.ENDED or state.step % parts.manifest.policy.evaluate_every == 0


def own_share(parts: Parts) -> tuple[Digest, ...]:
    """Return the held-out blocks on which this node still has to measure θ at the ledger's head."""
    step, own = parts.ledger.state.step, parts.validation.own
    share = shares(parts, step).get(parts.me) if is_measured(parts) else None
    if share is None or (own is not None and own.step == step):
        return ()
    assert parts.data is not None, "training starts after the data index has arrived"
    return parts.data.validation[share.first : share.stop]


async def own_files(parts: Parts, idle: Callable[[], bool]) -> tuple[str, ...]:
    """Return the files of our share; empty if `idle` became False or the step ended first.

    Training must not wait for blocks that no peer currently has.
    """
    step, share, files = parts.ledger.state.step, own_share(parts), list[str]()

    async def fetch() -> None:
        files.extend(map(str, await lease_data.paths_of(parts, share)))

    await parts.changes.so_long_as(lambda: idle() and parts.ledger.state.step == step, fetch)
    return tuple(files)


def measured(parts: Parts, step: int, loss: float, tokens: int) -> None:
    """Publish the trainer's measurement of the θ of `step` on our share. `step` was the ledger's
    head when the measurement was requested."""
    if not 0 <= loss <= LOSS_MAX_NATS:
        parts.journal.write("evaluation-failed", code="NAN", reason=f"the loss of θ is {loss:.3g}")
        return
    share = shares(parts, step).get(parts.me)
    if share is None:
        return  # The ledger has advanced and was pruned, so this θ is no longer evaluated.
    _begin(parts, step)
    report = ValidationReport(step, share.first, share.stop, tokens, loss * tokens)
    parts.validation.own = report
    refused = parts.validation.note_report(parts.me, report)
    parts.journal.write(
        "share-evaluated",
        step=step,
        first=share.first,
        stop=share.stop,
        loss=loss,
        tokens=tokens,
        refused=refused,
    )
    parts.speak_now()
    parts.changes.ring()


def hear(parts: Parts, peer: PeerId, heartbeat: Heartbeat) -> None:
    """Count the report in a heartbeat about its sender's share. Ignore it if the sender is on
    another line, where θ is different."""
    report = heartbeat.validation
    if report is None or heartbeat.line != parts.ledger.state.line:
        return
    if refused := parts.validation.note_report(peer, report):
        parts.complain("validation-refused", peer, reason=refused)


async def gather_validation(parts: Parts) -> None:
    """Sum up the reports and write the results to the journal, until cancelled."""
    while True:
        if is_measured(parts):
            _begin(parts, parts.ledger.state.step)
        for each in parts.validation.settled(parts.now(), lambda peer: _is_gone(parts, peer)):
            event = "evaluated" if each.loss is not None else "not-evaluated"
            parts.journal.write(event, **_account(each))
        await parts.changes.wait(at_most_s=LOOK_S)


def _begin(parts: Parts, step: int) -> None:
    """Start counting for the θ of `step` if its shares are known. Include reports that have already
    arrived."""
    who = shares(parts, step)
    if who and parts.validation.begin(step, who, parts.now()):
        for view in parts.peers:
            hear(parts, view.peer, view.heartbeat)


def _is_gone(parts: Parts, peer: PeerId) -> bool:
    return peer != parts.me and parts.is_down(peer)


def _account(validation: Validation) -> dict[str, object]:
    return {
        "step": validation.step,
        "loss": validation.loss,
        "tokens": validation.tokens,
        "blocks": validation.covered,
        "blocks_total": validation.blocks,
        "missing": validation.missing,
        "what": str(validation),
    }
