"""`p2ptrain node`: run a node until it stops.

A node on a branch (a separate continuation of the ledger, made after the quorum was lost) may adopt
another chain. Then this process closes everything and starts the node again on that chain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import trio

from p2ptrain.archive.home import Home, sole_use
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import P2PTrainError, first_error
from p2ptrain.identity import load_or_create
from p2ptrain.node.consensus.adopt_chain import write_adopted_chain
from p2ptrain.node.control.control_socket import serve_commands
from p2ptrain.node.control.leaving import ExitSignals
from p2ptrain.node.control.live_line import LiveLine, keep_live_line, open_live_line
from p2ptrain.node.joining import find_run
from p2ptrain.node.joining.invitation import invite
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.malloc_limits import limit_malloc
from p2ptrain.node.page.keep_notifier import keep_notifier
from p2ptrain.node.page.keep_page import keep_page
from p2ptrain.node.startup import open_node
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import durably, switch_threads_often
from p2ptrain.node.state.timing import USUAL, Timing
from p2ptrain.node.tasks import run_tasks
from p2ptrain.node.training.trainer_processes import MakeTrainers, subprocesses
from p2ptrain.observe.journal import Journal
from p2ptrain.store import Disk

Dress = Callable[[Context], Context]


def _as_it_is(context: Context) -> Context:
    """Return the context unchanged. Only tests replace objects in it."""
    return context


def run_node(
    config: NodeConfig, *, trainers: MakeTrainers = subprocesses, dress: Dress = _as_it_is
) -> int:
    """Run a node until it is stopped, and return the exit status.

    Tests of whole processes use the two callables: `trainers` starts the trainers, and `dress` may
    replace objects of the context before they are used.

    Raises P2PTrainError: the node cannot start or continue; the error says why, and what to do.
    """
    limit_malloc()
    switch_threads_often()
    home, output = Home(config.home), open_live_line(quiet=config.quiet)
    with sole_use(home), Journal(home.journal) as journal:
        journal.write("started", pid=os.getpid())
        try:
            main = partial(_main, trainers=trainers, dress=dress)
            trio.run(main, config, home, journal, output, strict_exception_groups=True)
        except* P2PTrainError as group:
            error = first_error(group)
            journal.write("stopped", code=error.code, reason=error.what, evidence=error.evidence)
            raise error from None
        journal.write("stopped", code="", reason="")
    _print_line(config.quiet, output, "stopped")
    return 0


async def _main(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    output: LiveLine,
    *,
    trainers: MakeTrainers,
    dress: Dress,
) -> None:
    print_line = partial(_print_line, config.quiet, output)
    exit_ = ExitSignals(print_line)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exit_.obey_signals, nursery.cancel_scope)
        nursery.start_soon(keep_live_line, output, lambda: exit_.context)

        def begin(context: Context | None) -> None:
            exit_.context = context

        await run_lives(config, home, journal, print_line, begin, trainers, dress=dress)
        nursery.cancel_scope.cancel()


async def run_lives(
    config: NodeConfig,
    home: Home,
    journal: Journal,
    print_line: find_run.PrintLine,
    begin: Callable[[Context | None], None],
    trainers: MakeTrainers = subprocesses,
    disk: Disk | None = None,
    dress: Dress = _as_it_is,
    timing: Timing = USUAL,
) -> None:
    """Run the node. When it leaves its branch for another chain, run it again on that chain.

    `begin` is called with each new context once it is open, and with None before that context is
    closed. If the user has stopped the node in the meantime, return instead of running it again.

    Raises P2PTrainError: the node cannot start or continue; the error says why, and what to do.
    """
    reception = StartupStatus(load_or_create(home.identity).peer, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_commands, home.control, reception)
        nursery.start_soon(keep_notifier, home, journal)
        if config.page_port is not None:
            nursery.start_soon(keep_page, home, config.page_port, print_line, journal)
        while True:
            async with open_node(
                config, home, reception, print_line, disk=disk, timing=timing
            ) as made:
                context = dress(made)
                if config.seed:
                    invite(context, print_line)
                begin(context)
                async with reception.with_context(context):
                    rejoin = await run_tasks(context, print_line, trainers)
                begin(None)
            if rejoin is None:
                break
            await durably(write_adopted_chain, home, rejoin, disk)
            if context.state.leaving:
                break
            print_line(
                "rejoining: a different chain outranks this node's branch; the node drops its "
                f"entries after entry {rejoin.height}, and continues on that chain"
            )
        nursery.cancel_scope.cancel()


def _print_line(quiet: bool, output: LiveLine, text: str) -> None:
    """Print a line for the user. Replace unprintable characters, so that no peer's text can control
    the terminal.

    Each line begins with the date and time, even on a terminal: a node runs for weeks, and users
    search its output with grep or send lines to the organiser.
    """
    if not quiet:
        shown = "".join(letter if letter.isprintable() else "·" for letter in text)
        output.write_line(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shown}")
