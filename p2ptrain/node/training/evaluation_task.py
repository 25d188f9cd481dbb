"""Have θ measured on held-out blocks every so many outer steps: our share here, the rest by others.

Reports travel in heartbeats, which repeat them until the next, so one that is lost is no loss, and
who learns of a commit late finds what others say of it in their last heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from p2ptrain.ids import Digest, PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training import lease_data
from p2ptrain.peers.heartbeat import LOSS_MAX_NATS, Heartbeat, ValidationReport
from p2ptrain.peers.validation_tally import Share, Validation, divided

LOOK_S = 5.0


def shares(parts: Parts, step: int) -> Mapping[PeerId, Share]:
    """Who measures what of θ of outer step `step`, which has been reached.

    Those whose work is in the newest update that made it. Before the first, whom the run's first
    roster names beside its founders, since founders often are seeds; or these if it names nobody.
    """
    peers = [each.peer for each in parts.history.newest_participants(step)]
    first = parts.ledger.kept.at(1)
    if step == 0 and first is not None and isinstance(first.entry.value, Roster):
        peers = list(first.entry.value.learners or first.entry.value.voters)
    return divided(parts.manifest.data.validation_blocks, peers, step)


def is_measured(parts: Parts) -> bool:
    """Whether θ at the ledger's head is to be measured: every so often, and at the end."""
    state = parts.ledger.state
    return state.phase is Phase.ENDED or state.step % parts.manifest.policy.evaluate_every == 0


def own_share(parts: Parts) -> tuple[Digest, ...]:
    """The held-out blocks on which θ at the ledger's head is still to be measured here."""
    step, own = parts.ledger.state.step, parts.validation.own
    share = shares(parts, step).get(parts.me) if is_measured(parts) else None
    if share is None or (own is not None and own.step == step):
        return ()
    assert parts.data is not None, "nobody trains before the data index is here"
    return parts.data.validation[share.first : share.stop]


async def own_files(parts: Parts, idle: Callable[[], bool]) -> tuple[str, ...]:
    """The files of our share; empty if `idle` ceased to hold, or the step ended, before they came.

    Blocks that nobody has now must not keep the training waiting.
    """
    step, share, files = parts.ledger.state.step, own_share(parts), list[str]()

    async def fetch() -> None:
        files.extend(map(str, await lease_data.paths_of(parts, share)))

    await parts.changes.so_long_as(lambda: idle() and parts.ledger.state.step == step, fetch)
    return tuple(files)


def measured(parts: Parts, step: int, loss: float, tokens: int) -> None:
    """Tell everybody what the trainer says of our share of θ of `step`, the ledger's head when
    it was asked."""
    if not 0 <= loss <= LOSS_MAX_NATS:
        parts.journal.write("evaluation-failed", code="NAN", reason=f"the loss of θ is {loss:.3g}")
        return
    share = shares(parts, step).get(parts.me)
    if share is None:
        return  # The ledger went on meanwhile, and was pruned: nobody counts for that θ any more.
    _begin(parts, step)
    report = ValidationReport(step, share.first, share.stop, tokens, loss * tokens)
    parts.validation.own = report
    refused = parts.validation.hear(parts.me, report)
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
    """What a heartbeat says of its sender's share. On another line θ is another one."""
    report = heartbeat.validation
    if report is None or heartbeat.line != parts.ledger.state.line:
        return
    if refused := parts.validation.hear(peer, report):
        parts.complain("validation-refused", peer, reason=refused)


async def gather_validation(parts: Parts) -> None:
    """Add up what is reported, and write it down, for ever."""
    while True:
        if is_measured(parts):
            _begin(parts, parts.ledger.state.step)
        for each in parts.validation.settled(parts.now(), lambda peer: _is_gone(parts, peer)):
            event = "evaluated" if each.loss is not None else "not-evaluated"
            parts.journal.write(event, **_account(each))
        await parts.changes.wait(at_most_s=LOOK_S)


def _begin(parts: Parts, step: int) -> None:
    """Count for θ of `step`, if it is known who measures it. What they say of it may be here."""
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
