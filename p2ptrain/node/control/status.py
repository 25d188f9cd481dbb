"""Build this node's status when a user requests it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from time import time
from typing import Any

from p2ptrain.ids import Digest, PeerId
from p2ptrain.names import peer_name
from p2ptrain.node.consensus import branch_warning
from p2ptrain.node.control import waiting
from p2ptrain.node.control.orders import limits_in_words, schedule_in_words
from p2ptrain.node.gossip import amendment_gossip, reachability
from p2ptrain.node.joining import hello_server
from p2ptrain.node.outer_state.state_digest import known_digest, state_digest
from p2ptrain.node.reduce import ring_order
from p2ptrain.node.relaying import own_relay
from p2ptrain.node.state.context import Context
from p2ptrain.observe.states import rate, size, words
from p2ptrain.observe.status import MemberStatus, NodeStatus
from p2ptrain.peers.validation_tally import Validation
from p2ptrain.ring import ReduceStatistics

Wall = Callable[[], float]
"""A Unix clock."""

ASKING_MAX = 5
"""Maximum number of join requests in the status: strangers can send any number of them. `p2ptrain
peers pending` shows all."""

SNAPSHOTS_MAX = 8
"""Maximum number of snapshots in the status. Members that differ could report any number."""

KEPT_USUALLY = 2
"""Number of its newest snapshots that a member keeps, unless its user chose another number."""


async def status(context: Context, *, wall: Wall = time) -> NodeStatus:
    """Return the node's current status, for users and programs."""
    return brief_status(context, await state_digest(context.outer), wall=wall)


def brief_status(context: Context, digest: str | None = None, *, wall: Wall = time) -> NodeStatus:
    """Return the status for the page. Without `digest`, it is only in the status if it is known."""
    state = context.ledger.snapshot
    wait = waiting.current_wait(context, wall())
    validation = context.trainer.validation.newest
    newest = context.trainer.progress
    cautions = (*context.alerts.doubts, *context.alerts.warnings.values())
    return NodeStatus(
        **_who(context),
        run=context.run,
        run_name=context.manifest.name,
        outer_step=context.outer.step or 0,
        outer_steps=context.manifest.outer.steps,
        inner_step=context.trainer.inner_step,
        inner_steps=context.trainer.inner_steps,
        ledger_height=state.height,
        ledger_head=state.head,
        ledger_origin=context.ledger.origin.words if context.ledger.origin else "",
        state_digest=known_digest(context.outer) if digest is None else digest,
        tokens=state.tokens_by_peer.get(context.me, 0),
        tokens_total=state.tokens,
        tokens_per_s=context.trainer.tokens_per_s,
        loss=newest.loss if newest else None,
        validation_loss=validation.loss if validation else None,
        validation=asdict(validation) if validation else {},
        validated=validated(validation) if validation else "",
        data_wait_s=newest.data_wait_s if newest else None,
        learning_rate=newest.learning_rate if newest else None,
        gradient_norm=newest.gradient_norm if newest else None,
        mfu=newest.mfu if newest else None,
        compute_utilisation=context.outer.utilisation,
        trainer=context.trainer.device,
        inner_from=context.sharing.inner_from,
        learning=asdict(context.reduce.comparison) if context.reduce.comparison else {},
        waits_for="" if wait is None else wait.words(wall()),
        waiting={} if wait is None else wait.to_json(),
        branch=_branch(context),
        amended=amendment_gossip.in_words(context),
        averaging=ring_order.in_words(context),
        asking=_asking(context),
        reach=reachability.in_words(context),
        relaying=own_relay.in_words(context.peers.relaying.totals),
        relayed=own_relay.as_json(context.peers.relaying.totals),
        role=_role(context, context.me),
        members=tuple(_member(context, peer) for peer in state.members),
        addresses=tuple(context.network.addresses()),
        congestion_control=context.plane.congestion.control,
        congestion_refusal=context.plane.congestion.refusal,
        limit_up_bytes_per_s=context.limit_up_bytes_per_s,
        **(_control(context) | _snapshots(context)),
        sending=_sending(context),
        exchange=context.reduce.last_ring.facts() if context.reduce.last_ring else {},
        exchanged=reduce_in_words(context.reduce.last_ring) if context.reduce.last_ring else "",
        uptime_s=context.now() - context.state.started_s,
        warnings=tuple(each.words for each in cautions),
        cautions=cautions,
    )


def _branch(context: Context) -> str:
    agreement = context.ledger.core.status(context.now())
    return branch_warning.in_words(agreement.branch, context.ledger.core)


def _who(context: Context) -> dict[str, Any]:
    """Return this node's id and name, and its state in words and by name."""
    state, me = context.shown, context.me
    told = {"state": words(state), "state_name": state.name}
    return {"peer": me, "peer_name": peer_name(me), **told}


def _control(context: Context) -> dict[str, Any]:
    """Return the fields that show the owner's wishes and their effect."""
    own = context.state
    wishes, usage = own.wishes, own.usage
    restricted = wishes.schedule is not None or wishes.needs_the_machine
    missing = f" ({'; '.join(own.unavailable)})" if own.unavailable else ""
    leaves = "this node leaves when its next contribution is committed, as you asked"
    return {
        "limits": limits_in_words(context),
        "schedule": schedule_in_words(wishes) + missing if restricted else "",
        "paused": {} if own.pause is None else asdict(own.pause),
        "finishing": "" if own.finishing is None else leaves,
        "stopped": own.stopped,
        "bytes_today": {"up": usage.up, "down": usage.down},
    }


def _snapshots(context: Context) -> dict[str, Any]:
    """Return the fields about snapshots: the certified step, and the newest snapshots with the
    number of members that wrote each and are up."""
    certified = context.ledger.snapshot.snapshot
    reports = context.ledger.core.reports.snapshots
    counts = Counter[tuple[int, Digest]]()
    for peer in context.ledger.snapshot.members:
        if peer == context.me or not context.peers.is_down(peer):
            counts.update(sorted(reports.get(peer, {}).items())[-KEPT_USUALLY:])
    newest = sorted(counts.items(), reverse=True)[:SNAPSHOTS_MAX]
    copies = ({"step": step, "digest": digest, "copies": n} for (step, digest), n in newest)
    return {"snapshot_step": certified.step if certified else None, "snapshots": tuple(copies)}


def _asking(context: Context) -> tuple[str, ...]:
    asking = hello_server.waiting_peers(context)[:ASKING_MAX]
    return tuple(hello_server.request_line(context, peer) for peer in asking)


def _sending(context: Context) -> str:
    limit = context.limit_up_bytes_per_s
    return context.plane.congestion.words + (f"; at most {8e-6 * limit:g} Mbit/s" if limit else "")


def validated(validation: Validation) -> str:
    """Return the loss of θ that the members measured, in words."""
    said = f"θ of outer step {validation.step}: loss {validation}"
    missing = ", ".join(map(peer_name, validation.missing))
    return f"{said}; no report from {missing}" if missing else said


def reduce_in_words(report: ReduceStatistics) -> str:
    """Describe the last reduce in words."""
    said = (
        f"the last took {report.seconds:.2f} s, including {report.scatter_s:.2f} s for the "
        f"sum; {size(report.sent_bytes)} up, {size(report.received_bytes)} down, "
        f"{report.cpu_s:.2f} s of CPU"
    )
    if not report.traffic:
        return said
    slowest = min(report.traffic, key=lambda each: each.sent_bytes_per_s)
    return (
        f"{said}; slowest connection to {peer_name(slowest.peer)}, {rate(slowest.sent_bytes_per_s)}"
    )


def _role(context: Context, peer: PeerId) -> str:
    state = context.ledger.snapshot
    if peer in state.voters:
        return "voter"
    return "learner" if peer in state.learners else ""


def _member(context: Context, peer: PeerId) -> MemberStatus:
    mine = peer == context.me
    record = context.peers.table.get(peer)
    heard_s_ago = context.now() - record.heard_s if record else None
    rate = context.trainer.tokens_per_s if mine else record.heartbeat.tokens_per_s if record else 0
    said = words(context.shown) if mine else record.heartbeat.state if record else ""
    rtt_s = None if mine else context.network.round_trip_s(peer)
    return MemberStatus(
        peer=peer,
        peer_name=peer_name(peer),
        role=_role(context, peer),
        health="green" if mine else context.peers.detector.status(peer, context.now()).value,
        state=said,
        tokens=context.ledger.snapshot.tokens_by_peer.get(peer, 0),
        tokens_per_s=rate,
        heard_s_ago=None if mine else heard_s_ago,
        rtt_ms=None if rtt_s is None else round(1e3 * rtt_s, 1),
    )
