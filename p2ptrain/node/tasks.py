"""Run all tasks of a node in one nursery.

A task that fails ends the node. So faults of the user's machine (a full disk, a trainer that keeps
dying) are reported, and bugs are not hidden.
"""

from __future__ import annotations

import trio

from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.effects import Rejoin
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.averages.check_task import check_averages
from p2ptrain.node.averages.documents import serve_claims
from p2ptrain.node.averages.signed_sums import serve_sums
from p2ptrain.node.consensus.ledger_task import run_ledger
from p2ptrain.node.consensus.pruning import notice_pruned
from p2ptrain.node.control.finishing import leave_when_finished
from p2ptrain.node.control.isolation_warning import notice_isolation
from p2ptrain.node.control.left_out_warning import notice_left_out
from p2ptrain.node.control.lost_vote_warning import notice_lost_vote
from p2ptrain.node.control.pausing import Pausing
from p2ptrain.node.control.progress_lines import print_progress
from p2ptrain.node.control.run_stop import notice_stop
from p2ptrain.node.control.series.history_server import serve_history
from p2ptrain.node.control.series.recording import record_series
from p2ptrain.node.control.slow_reduce_warning import notice_slow_reduce
from p2ptrain.node.control.waiting import notice_waits
from p2ptrain.node.forwarding.forwarding import answer_forwarded
from p2ptrain.node.gossip import connections
from p2ptrain.node.gossip.amendment_gossip import keep_amended
from p2ptrain.node.gossip.endpoint_exchange import answer_introductions
from p2ptrain.node.gossip.gossip import listen, send_heartbeats
from p2ptrain.node.gossip.grant_gossip import keep_grants
from p2ptrain.node.gossip.network_change import notice_new_network
from p2ptrain.node.gossip.path_probes import probe_paths
from p2ptrain.node.gossip.reach_answers import answer_reach_questions
from p2ptrain.node.gossip.reach_task import watch_reach
from p2ptrain.node.gossip.revocation import notice_revocation
from p2ptrain.node.gossip.role_change import notice_role
from p2ptrain.node.joining import decisions, duplicate_identity, hello_server
from p2ptrain.node.joining.admit_by_token import admit_by_token
from p2ptrain.node.joining.base_server import serve_bases
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.joining.merge_lists import merge_lists
from p2ptrain.node.optimizer_sharing.donor import donate
from p2ptrain.node.outer_state.data_index import learn_data
from p2ptrain.node.outer_state.fetch import keep_connections
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.outer_state.retention import keep_store_small
from p2ptrain.node.outer_state.scrub import scrub
from p2ptrain.node.port_mapping.keep_mapped import keep_ports_mapped
from p2ptrain.node.punching.agreeing import answer_punches, keep_punching
from p2ptrain.node.punching.port_kind import watch_port_kind
from p2ptrain.node.reduce.reduce_task import run_reduces
from p2ptrain.node.reduce.sketch_exchange import serve_sketches
from p2ptrain.node.relaying.meetings import answer_meetings
from p2ptrain.node.state.context import Context
from p2ptrain.node.training.evaluation_task import gather_validation
from p2ptrain.node.training.lease_data import fetch_ahead
from p2ptrain.node.training.ready_work import follow_branches
from p2ptrain.node.training.sampling import take_sample
from p2ptrain.node.training.trainer_processes import MakeTrainers, subprocesses
from p2ptrain.node.training.trainer_task import train
from p2ptrain.node.watching.visits import serve_visitors
from p2ptrain.node.watching.watch_server import answer_watchers
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import Serving, StandingBy
from p2ptrain.peers.protocol_names import identity_topic, samples_topic
from p2ptrain.suggested_command import to_paste

_PRESENT = (
    send_heartbeats,
    connections.stay_connected,
    connections.bootstrap_again,
    connections.find_peers,
    connections.notice_lost_connections,
    connections.watch_peers,
    notice_new_network,
    notice_revocation,
    notice_pruned,
    duplicate_identity.watch_for_duplicates,
    keep_amended,
    keep_grants,
)

_ADMISSION = (
    hello_server.pass_requests_on,
    decisions.tell_decisions,
    admit_by_token,
    merge_lists,
)


def start_presence(nursery: trio.Nursery, context: Context) -> None:
    """Start the tasks that nodes and observers have in common: answer neighbours, send and receive
    gossip, and stay connected."""
    hello_server.answer_hellos(context)
    duplicate_identity.answer_questions(context)
    notices = {
        identity_topic(context.run): duplicate_identity.take_notice,
        samples_topic(context.run): take_sample,
    }
    nursery.start_soon(listen, context, notices)
    for task in _PRESENT:
        nursery.start_soon(task, context)


def _serve_proofs(context: Context) -> None:
    """From now on, show what others need to check contributions and averages."""
    serve_claims(context)
    serve_sketches(context)
    serve_sums(context)


async def run_tasks(
    context: Context, print_line: PrintLine, trainers: MakeTrainers = subprocesses
) -> Rejoin | None:
    """Run the tasks until this node leaves its branch of the ledger, and return the chain that the
    node adopts instead; None if the node has finished, by its owner's wish. `trainers` makes the
    object that starts trainers; it is not called on a seed, which does not train.
    Raises P2PTrainError: something that this node needs has failed."""
    left = list[Rejoin]()

    async def run_ledger_to_the_end() -> None:
        left.append(await run_ledger(context))
        nursery.cancel_scope.cancel()

    async def run_to_the_finish() -> None:
        await leave_when_finished(context, print_line)
        nursery.cancel_scope.cancel()

    pausing = Pausing(context)
    pausing.decide()  # Before a trainer can start.
    answer_introductions(context)
    answer_reach_questions(context)
    answer_forwarded(context)
    answer_punches(context)
    serve_bases(context)
    serve_history(context)
    _serve_proofs(context)
    decisions.take_decisions(context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_ledger_to_the_end)
        nursery.start_soon(run_to_the_finish)
        nursery.start_soon(pausing.run)
        start_presence(nursery, context)
        for task in (notice_the_end, notice_isolation, notice_waits, watch_reach, keep_punching):
            nursery.start_soon(task, context)
        for task in (notice_stop, keep_ports_mapped, answer_meetings, watch_port_kind):
            nursery.start_soon(task, context)
        nursery.start_soon(print_progress, context, print_line)
        nursery.start_soon(record_series, context)
        nursery.start_soon(keep_connections, context)
        nursery.start_soon(answer_watchers, context, context.trainer.samples.after)
        for task in (*_ADMISSION, serve_visitors, notice_role):
            nursery.start_soon(task, context)
        await learn_data(context)
        nursery.start_soon(keep_outer_state, context)
        nursery.start_soon(fetch_ahead, context)
        nursery.start_soon(probe_paths, context)
        nursery.start_soon(gather_validation, context)
        nursery.start_soon(donate, context)
        nursery.start_soon(keep_store_small, context)
        nursery.start_soon(check_averages, context)
        nursery.start_soon(scrub, context)
        if not context.trains:
            nursery.start_soon(serve_only, context)
            nursery.start_soon(notice_lost_vote, context)
        else:
            for task in (run_reduces, notice_left_out, notice_slow_reduce, follow_branches):
                nursery.start_soon(task, context)
            nursery.start_soon(train, context, trainers(context))
    return left[0] if left else None


async def serve_only(context: Context) -> None:
    """Serve as a seed or a reader, which do not train. A seed reports at the beginning of every
    outer step that it is ready with 0 tokens: a reduce begins only when a quorum of the voters is
    ready. A reader reports nothing."""
    context.state.set_state(Serving())
    told_step = -1
    while True:
        step = context.ledger.snapshot.step
        if step != told_step and context.admission.may_train(context.me):
            told_step = step
            await context.ledger.submit(Ready(context.me, step, 0, 0))
        else:
            await context.changes.wait()


async def notice_the_end(context: Context) -> None:
    """Wait for the end of the run and report it. The node then continues to serve the weights."""
    while not (context.ledger.snapshot.phase is Phase.ENDED and context.at_head()):
        await context.changes.wait_calmly()
    context.journal.write(
        "run-ended", step=context.outer.step, tokens=context.ledger.snapshot.tokens
    )
    if context.trains:
        if not context.about(context.ledger.snapshot.step).stop:
            context.state.set_state(StandingBy("the run is complete; this node serves its weights"))
        if context.me not in context.ledger.snapshot.tokens_by_peer:
            export = to_paste(context.home.root, "export --to hf DIR")
            late = "the run has ended; this node joined too late to take part in it"
            advice = f"{export} writes the run's weights to a directory"
            context.alerts.show("ended", Caution("RUN-ENDED", late, advice))
            context.changes.notify_all()
