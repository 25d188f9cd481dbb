"""Run all tasks of a node in one nursery. Each task starts once it has what it needs.

A task that fails ends the node. So faults of the user's machine (a full disk, a trainer that keeps
dying) are reported, and bugs are not hidden.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.messages.effects import Rejoin
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.assembly import Made
from p2ptrain.node.consensus.ledger_task import agree
from p2ptrain.node.control.isolation_warning import notice_isolation
from p2ptrain.node.control.left_out_warning import notice_left_out
from p2ptrain.node.control.slow_reduce_warning import notice_slow_exchange
from p2ptrain.node.gossip.endpoint_exchange import answer_introductions
from p2ptrain.node.gossip.path_probes import probe_paths
from p2ptrain.node.joining import hello_server
from p2ptrain.node.joining.base_server import serve_bases
from p2ptrain.node.joining.find_run import Say
from p2ptrain.node.optimizer_sharing.donor import donate
from p2ptrain.node.outer_state import fetch
from p2ptrain.node.outer_state.outer_task import keep_outer_state
from p2ptrain.node.outer_state.retention import keep_store_small
from p2ptrain.node.outer_state.scrub import scrub
from p2ptrain.node.presence import be_present
from p2ptrain.node.reduce.reduce_task import exchange
from p2ptrain.node.state.context import Parts
from p2ptrain.node.training.evaluation_task import gather_validation
from p2ptrain.node.training.lease_data import fetch_ahead
from p2ptrain.node.training.trainer_processes import MakeTrainers, subprocesses
from p2ptrain.node.training.trainer_task import train
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import FetchingSnapshot, Serving, StandingBy, State, words
from p2ptrain.run import DataIndex
from p2ptrain.suggested_command import to_paste


async def live(made: Made, say: Say, trainers: MakeTrainers = subprocesses) -> Rejoin:
    """Run until cancelled, or until this node leaves its branch; then return the chain to adopt.
    `trainers` starts the trainers. It is not called on a seed.

    Raises:
        P2PTrainError: something that this node needs has failed.
    """
    parts, left = made.parts, list[Rejoin]()

    async def agree_to_the_end() -> None:
        left.append(await agree(parts, made.events))
        nursery.cancel_scope.cancel()

    answer_introductions(parts)
    serve_bases(parts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agree_to_the_end)
        be_present(nursery, parts, made.run)
        for task in (notice_the_end, notice_isolation):
            nursery.start_soon(task, parts)
        nursery.start_soon(narrate, parts, say)
        nursery.start_soon(hello_server.pass_requests_on, parts)
        await _learn_data(parts)
        nursery.start_soon(keep_outer_state, parts)
        nursery.start_soon(fetch_ahead, parts)
        nursery.start_soon(probe_paths, parts)
        nursery.start_soon(gather_validation, parts)
        nursery.start_soon(donate, parts)
        nursery.start_soon(keep_store_small, parts)
        nursery.start_soon(scrub, parts)
        if parts.arena is None:
            nursery.start_soon(serve_only, parts)
        else:
            for task in (exchange, notice_left_out, notice_slow_exchange):
                nursery.start_soon(task, parts)
            nursery.start_soon(train, parts, trainers(parts))
    return left[0]


async def _learn_data(parts: Parts) -> None:
    """Fetch the tokenizer and the index of the run's data blocks, and set `parts.data`."""
    manifest = parts.manifest
    for digest in (manifest.data.index, manifest.tokenizer):
        await fetch.fetch(parts, digest)
    read = partial(parts.store.read_blob, manifest.data.index)
    index = await fetch.use(parts, manifest.data.index, read)
    parts.data = DataIndex.from_bytes(
        index,
        train_blocks=manifest.data.train_blocks,
        validation_blocks=manifest.data.validation_blocks,
    )


async def serve_only(parts: Parts) -> None:
    """Serve as a seed, which does not train: it is ready for every outer step with no tokens."""
    parts.enter(Serving())
    told_step = -1
    while True:
        step = parts.ledger.state.step
        if step != told_step:
            told_step = step
            await parts.tell(Ready(parts.me, step, 0, 0))
        else:
            await parts.changes.wait()


async def notice_the_end(parts: Parts) -> None:
    """Wait for the end of the run and report it. The node then continues to serve the weights."""
    while not (parts.ledger.state.phase is Phase.ENDED and parts.at_head()):
        await parts.changes.wait()
    parts.journal.write("run-ended", step=parts.outer.step, tokens=parts.ledger.state.tokens)
    if parts.trains:
        parts.enter(StandingBy("the run is complete; this node serves its weights"))
        if parts.me not in parts.ledger.state.tokens_by_peer:
            export = to_paste(parts.home.root, "export --to hf DIR")
            parts.standing.warnings["ended"] = Caution(
                "RUN-ENDED",
                "the run has ended; this node joined too late to take part in it",
                f"{export} writes the run's weights to a directory",
            )
            parts.changes.ring()


async def narrate(parts: Parts, say: Say) -> None:
    """Print each change of state, warning, request to join, and outer step, until cancelled."""
    told, step, trainer, warned, asked = "", None, "", set[Caution](), set[PeerId]()
    while True:
        state, standing = parts.standing.shown, parts.standing
        if standing.trainer != trainer:
            trainer = standing.trainer
            say(f"training on {trainer}")
        if (news := _news(state)) != told:
            told = news
            say(words(state))
        for caution in standing.warnings.values():
            if caution not in warned:
                say(f"warning: {caution.words}")
        warned = set(standing.warnings.values())
        for peer in hello_server.asking(parts):
            if peer not in asked:
                asked.add(peer)
                say(hello_server.asks(parts, peer))
        if parts.outer.step not in (step, None):
            step = parts.outer.step
            say(f"outer step {step} of {parts.manifest.outer.steps}, {_tokens(parts)}")
        await parts.changes.wait()


def _news(state: State) -> str:
    """Return a text that changes when the state is worth printing again. Changes of numbers do not
    count, except each tenth of a download, which can take minutes or hours.
    """
    match state:
        case StandingBy():
            return words(state)
        case FetchingSnapshot(bytes_done, bytes_total):
            return f"{state.name} {10 * bytes_done // max(1, bytes_total)}"
        case _:
            return state.name


def _tokens(parts: Parts) -> str:
    state = parts.ledger.state
    mine = state.tokens_by_peer.get(parts.me, 0)
    return f"{state.tokens:,} tokens in all" + (f", {mine:,} of them yours" if mine else "")
