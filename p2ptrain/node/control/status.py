"""Build this node's status when a user requests it."""

from __future__ import annotations

import time
from dataclasses import asdict

import trio

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.node.consensus import branch_warning
from p2ptrain.node.gossip import amendment_gossip, reachability
from p2ptrain.node.joining import hello_server
from p2ptrain.node.reduce import ring_order
from p2ptrain.node.state.context import Parts
from p2ptrain.observe.states import rate, size, words
from p2ptrain.observe.status import MemberStatus, NodeStatus
from p2ptrain.peers.validation_tally import Validation
from p2ptrain.ring import ReduceStatistics

DIGEST_NUMEL_MAX = 1 << 28
"""Maximum number of parameters for which the status shows a hash of θ and m. Hashing more takes
over a second; for such models, use the digests of snapshots instead."""

ASKING_MAX = 5
"""Maximum number of requests for admission in the status, since anybody can make one. `p2ptrain
allow list` shows all."""


async def status(parts: Parts) -> NodeStatus:
    """Return the node's current status, for users and programs."""
    state, standing = parts.ledger.state, parts.standing
    digest = await _state_digest(parts)
    agreement = parts.ledger.status(parts.now())
    validation = parts.validation.newest
    newest = standing.progress
    waited_for = ", ".join(map(peer_name, agreement.waiting_for))
    cautions = (*standing.doubts, *standing.warnings.values())
    return NodeStatus(
        peer=parts.me,
        peer_name=peer_name(parts.me),
        state=words(standing.shown),
        state_name=standing.shown.name,
        run=parts.run,
        run_name=parts.manifest.name,
        outer_step=parts.outer.step or 0,
        outer_steps=parts.manifest.outer.steps,
        inner_step=standing.inner_step,
        inner_steps=standing.inner_steps,
        ledger_height=state.height,
        ledger_head=state.head,
        ledger_origin=parts.origin.words if parts.origin else "",
        state_digest=digest,
        snapshot_step=state.snapshot.step if state.snapshot else None,
        tokens=state.tokens_by_peer.get(parts.me, 0),
        tokens_total=state.tokens,
        tokens_per_s=standing.tokens_per_s,
        loss=newest.loss if newest else None,
        validation_loss=validation.loss if validation else None,
        validation=asdict(validation) if validation else {},
        validated=validated(validation) if validation else "",
        data_wait_s=newest.data_wait_s if newest else None,
        learning_rate=newest.learning_rate if newest else None,
        gradient_norm=newest.gradient_norm if newest else None,
        mfu=newest.mfu if newest else None,
        compute_utilisation=standing.utilisation,
        trainer=standing.trainer,
        inner_from=standing.inner_from,
        learning=asdict(standing.comparison) if standing.comparison else {},
        waits_for=f"{agreement.reason}: {waited_for}" if waited_for else agreement.reason,
        branch=branch_warning.in_words(agreement.branch, parts.ledger),
        amended=amendment_gossip.in_words(parts),
        averaging=ring_order.in_words(parts),
        asking=_asking(parts),
        reach=reachability.in_words(parts),
        role=_role(parts, parts.me),
        members=tuple(_member(parts, peer) for peer in state.members),
        addresses=tuple(parts.network.addresses()),
        congestion_control=parts.congestion.control,
        congestion_refusal=parts.congestion.refusal,
        limit_up_bytes_per_s=parts.config.limit_up_bytes_per_s,
        sending=_sending(parts),
        exchange=standing.last_reduce.facts() if standing.last_reduce else {},
        exchanged=exchanged(standing.last_reduce) if standing.last_reduce else "",
        uptime_s=time.monotonic() - parts.started_s,
        warnings=tuple(each.words for each in cautions),
        cautions=cautions,
    )


async def _state_digest(parts: Parts) -> str:
    """Return the blake3 hash of θ and m, computed once per outer step; empty if there is none."""
    outer = parts.outer
    if outer.step is None or outer.moving or outer.vectors.numel > DIGEST_NUMEL_MAX:
        return ""
    if outer.digest is None or outer.digest[0] != outer.step:
        step = outer.step
        digest = await trio.to_thread.run_sync(outer.vectors.digest)
        if outer.step != step or outer.moving:
            return ""
        outer.digest = (step, digest)
    return outer.digest[1]


def _asking(parts: Parts) -> tuple[str, ...]:
    first = hello_server.asking(parts)[:ASKING_MAX]
    return tuple(hello_server.asks(parts, peer) for peer in first)


def _sending(parts: Parts) -> str:
    limit = parts.config.limit_up_bytes_per_s
    return parts.congestion.words + (f"; at most {8e-6 * limit:g} Mbit/s" if limit else "")


def validated(validation: Validation) -> str:
    """Return the members' measurements of θ in words."""
    said = f"θ of outer step {validation.step}: loss {validation}"
    missing = ", ".join(map(peer_name, validation.missing))
    return f"{said}; no report from {missing}" if missing else said


def exchanged(report: ReduceStatistics) -> str:
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


def _role(parts: Parts, peer: PeerId) -> str:
    state = parts.ledger.state
    if peer in state.voters:
        return "voter"
    return "learner" if peer in state.learners else ""


def _member(parts: Parts, peer: PeerId) -> MemberStatus:
    mine = peer == parts.me
    view = parts.peers.get(peer)
    heard_s_ago = parts.now() - view.heard_s if view else None
    rate = parts.standing.tokens_per_s if mine else view.heartbeat.tokens_per_s if view else 0
    said = words(parts.standing.shown) if mine else view.heartbeat.state if view else ""
    return MemberStatus(
        peer=peer,
        peer_name=peer_name(peer),
        role=_role(parts, peer),
        health="green" if mine else parts.detector.status(peer, parts.now()).value,
        state=said,
        tokens=parts.ledger.state.tokens_by_peer.get(peer, 0),
        tokens_per_s=rate,
        heard_s_ago=None if mine else heard_s_ago,
    )
