"""`p2ptrain node`: assemble the parts, run the tasks, and close everything at the end.

    home, identity ─► network ─► run ─► admission ─► store, ledger, outer state ─► tasks

Each stage needs the previous ones. They are closed in reverse order, no matter how the node ends.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

from p2ptrain.archive import start_count
from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home, sole_use
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import P2PTrainError, first_error
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network, open_network
from p2ptrain.node.assembly import Made, assembled
from p2ptrain.node.consensus.adopt_chain import take_over
from p2ptrain.node.control.control_socket import serve_commands
from p2ptrain.node.control.leaving import Exit
from p2ptrain.node.gossip.ask_peers import ADMITTED, STRANGER
from p2ptrain.node.gossip.connections import met_before
from p2ptrain.node.joining import consent, duplicate_identity, find_run, trusted_checkpoint
from p2ptrain.node.joining.invitation import invite
from p2ptrain.node.joining.startup_status import Reception
from p2ptrain.node.state.context import Parts
from p2ptrain.node.state.malloc_limits import limit_malloc
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.node.state.threads import switch_threads_often
from p2ptrain.node.tasks import live
from p2ptrain.node.training.trainer_processes import MakeTrainers, subprocesses
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.states import AwaitingAnswer, Checking, Connecting
from p2ptrain.prepare import machine_check
from p2ptrain.run import Run, save_run
from p2ptrain.standard_error import write_line
from p2ptrain.store import Disk


def _leave_as_they_are(parts: Parts) -> None:
    """Do nothing: only tests change the parts."""


def run_node(
    config: NodeConfig,
    *,
    trainers: MakeTrainers = subprocesses,
    dress: Callable[[Parts], None] = _leave_as_they_are,
) -> int:
    """Run a node until it is stopped, and return the exit status.

    Tests of complete processes use the two callables: `trainers` starts the trainers, and `dress`
    may wrap the parts before they are used.

    Raises:
        P2PTrainError: the node cannot start or continue; the error says why, and what to do.
    """
    limit_malloc()
    switch_threads_often()
    home = Home(config.home)
    with sole_use(home), Journal(home.journal) as journal:
        journal.write("started", pid=os.getpid())
        try:
            main = partial(_main, trainers=trainers, dress=dress)
            trio.run(main, config, home, journal, strict_exception_groups=True)
        except* P2PTrainError as group:
            error = first_error(group)
            journal.write("stopped", code=error.code, reason=error.what, evidence=error.evidence)
            raise error from None
        journal.write("stopped", code="", reason="")
    _say(config.quiet, "stopped")
    return 0


async def _main(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    *,
    trainers: MakeTrainers,
    dress: Callable[[Parts], None],
) -> None:
    say = partial(_say, config.quiet)
    exit_ = Exit(say)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exit_.obey_signals, nursery.cancel_scope)

        def begin(parts: Parts | None) -> None:
            exit_.parts = parts
            if parts is not None:
                dress(parts)

        await lives(config, home, journal, say, begin, trainers)
        nursery.cancel_scope.cancel()


async def lives(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    say: find_run.Say,
    begin: Callable[[Parts | None], None],
    trainers: MakeTrainers = subprocesses,
    disk: Disk | None = None,
) -> None:
    """Run the node. When it leaves its branch for another chain, run it again on that chain.

    `begin` receives the parts each time they have been opened, and None before they are closed.
    Return if the node was leaving anyway.

    Raises:
        P2PTrainError: the node cannot start or continue; the error says why, and what to do.
    """
    reception = Reception(load_or_create(home.identity).peer, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_commands, home.control, reception)
        while True:
            async with opened(config, home, reception, say, disk=disk) as made:
                if config.seed:
                    invite(made.parts, say)
                begin(made.parts)
                async with reception.with_parts(made.parts):
                    rejoin = await live(made, say, trainers)
                begin(None)
            await trio.to_thread.run_sync(take_over, home, rejoin, disk)
            if made.parts.standing.leaving:
                break
            say(
                "rejoining: a different chain outranks this node's branch; entries after "
                f"{rejoin.height} are dropped, and training continues on that chain"
            )
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(
    config: NodeConfig,
    home: Home,
    reception: Reception,
    say: find_run.Say,
    *,
    disk: Disk | None = None,
) -> AsyncIterator[Made]:
    """Open all parts of a node that its run has admitted, for `live`. They are closed on exit.

    Raises:
        P2PTrainError: the node cannot start; the error says why, and what to do.
    """
    identity, journal = load_or_create(home.identity), reception.journal
    say(f"you are {label(identity.peer)}")
    await _check(config, home, find_run.known_run(home, config), reception, say)
    admission = Admission(home)
    async with open_network(
        identity,
        listen=config.listen,
        announce=config.announce,
        mdns=config.mdns,
        admitted=admission.admits,
    ) as network:
        for address in network.addresses():
            say(f"listening at {address}")
        run = await _join(network, config, home, identity, admission, reception, say)
        count = partial(start_count.count, home.starts, disk=disk)
        incarnation = await duplicate_identity.start(
            network, identity, run, count, admission.admits, say
        )
        await trusted_checkpoint.begin_at_checkpoint(
            network,
            config,
            home,
            run,
            journal,
            say,
            disk,
            rank=lambda peer: ADMITTED if admission.admits(peer) else STRANGER,
            draw=random.SystemRandom(),
        )
        around = Surroundings(
            config, home, journal, identity, run, admission, network, disk, incarnation
        )
        async with assembled(around) as made:
            yield made


async def _join(
    network: Network,
    config: NodeConfig,
    home: Home,
    identity: Identity,
    admission: Admission,
    reception: Reception,
    say: find_run.Say,
) -> Run:
    """Find the run, connect to a peer if one is reachable, and wait for admission."""
    met = met_before(network, home, reception.journal)
    ways_in = [*config.bootstrap, *met]
    known = find_run.known_run(home, config)
    if ways_in:
        reception.enter(Connecting())
        others = f" or {len(ways_in) - 1} more" if ways_in[1:] else ""
        say(f"connecting to {ways_in[0]}{others}")
    run = known or await find_run.learn_run(network, config, ways_in)
    reception.run = run
    if known is None:
        await _check(config, home, run, reception, say)
    asking = partial(reception.enter, AwaitingAnswer(), consent.HOW_TO_ANSWER)
    await consent.ask(run, config, identity.peer, home.agreed, asking=asking)
    if known is None:
        reception.enter(Connecting())
        save_run(home.manifest, run)
    admission.enter(run)
    if known is not None and ways_in:
        of_run = partial(_is_of_run, admission, met)
        await find_run.return_to(network, config, run, ways_in, say, is_of_run=of_run)
    network.refresh_admission()
    say(f"run {run.manifest.name!r} ({run.id[:12]}…), signed by {label(run.manifest.organiser)}")
    for promise in consent.promises():
        say(promise)
    await find_run.be_admitted(
        network,
        config,
        identity,
        run,
        admission,
        ways_in,
        reception,
        say,
        draw=random.SystemRandom(),
    )
    network.refresh_admission()
    return run


def _is_of_run(admission: Admission, met: list[str], peer: PeerId) -> bool:
    """Return whether this home knows `peer` from its run: it is listed, or was connected before."""
    return admission.names(peer) or any(peer in address for address in met)


async def _check(
    config: NodeConfig, home: Home, run: Run | None, reception: Reception, say: find_run.Say
) -> None:
    """Check that this machine can run the node. Warn about resources that may run short.

    Raises MachineUnfit, ConfigError, TrainerError: this machine cannot run the node.
    """
    reception.enter(Checking())
    found = await trio.to_thread.run_sync(machine_check.check, config, home, run)
    for doubt in reception.doubt([Caution(each.code, each.what, each.do) for each in found]):
        say(f"warning: {doubt.words}")


def _say(quiet: bool, text: str) -> None:
    """Print a line for the user; the journal has more. Unprintable characters are replaced, since
    they could control the terminal.

    Each line has its date, even on a terminal: a node runs for weeks, and users search for lines
    with grep or send them to the organiser.
    """
    if not quiet:
        shown = "".join(letter if letter.isprintable() else "·" for letter in text)
        write_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shown}")
