"""Start a node: check the machine, find the run, be admitted, and assemble the context.

    home, identity ─► network ─► run ─► admission ─► store, ledger, outer state

Each stage needs the ones before it. At the end of the node they are closed in the opposite order.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from p2ptrain.archive import start_count
from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.identity import Identity, load_or_create
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network, open_network
from p2ptrain.node.assembly import assembled
from p2ptrain.node.gossip.ask_peers import ADMITTED, STRANGER
from p2ptrain.node.gossip.connections import met_before
from p2ptrain.node.joining import (
    consent,
    duplicate_identity,
    find_run,
    first_contact,
    nearby_run,
    trusted_checkpoint,
)
from p2ptrain.node.joining.await_approval import be_admitted
from p2ptrain.node.joining.startup_status import StartupStatus
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.node.state.timing import USUAL, Timing
from p2ptrain.observe.cautions import Caution
from p2ptrain.observe.states import AwaitingAnswer, Checking, Connecting
from p2ptrain.prepare import machine_check
from p2ptrain.run import Run, SignedAmendment, save_run
from p2ptrain.store import Disk


@asynccontextmanager
async def open_node(
    config: NodeConfig,
    home: Home,
    reception: StartupStatus,
    say: find_run.PrintLine,
    *,
    disk: Disk | None = None,
    timing: Timing = USUAL,
) -> AsyncIterator[Context]:
    """Join the run, wait for admission, and open everything that a node uses. Close it on exit.
    Raises P2PTrainError: the node cannot start; the error says why and what to do."""
    identity, journal = load_or_create(home.identity), reception.journal
    say(f"you are {label(identity.peer)}")
    first_contact.check_bootstrap(config)
    await _check(config, home, find_run.known_run(home, config), reception, say)
    admission = Admission(home, identity.peer)
    async with open_network(
        identity,
        listen=config.listen,
        port=config.port,
        announce=config.announce,
        mdns=config.mdns,
        admitted=admission.admits,
    ) as network:
        for address in network.addresses():
            say(f"listening at {address}")
        run = await _join(network, config, home, identity, admission, reception, say, timing)
        count_start = partial(start_count.count_start, home.starts, disk=disk)
        started = await duplicate_identity.start(
            network, identity, run, count_start, admission.admits, say, timing.questions
        )
        await trusted_checkpoint.begin_at_checkpoint(
            network,
            config,
            home,
            run,
            journal,
            say,
            disk,
            rank=lambda peer: ADMITTED if admission.may_train(peer) else STRANGER,
            draw=random.SystemRandom(),
        )
        around = Surroundings(
            config,
            home,
            journal,
            identity,
            run,
            admission,
            network,
            timing,
            disk,
            started.incarnation,
            reception.doubts,
            started.members_answered,
        )
        around = _in_its_role(around, say)
        async with assembled(around) as context:
            yield context


def _in_its_role(around: Surroundings, say: find_run.PrintLine) -> Surroundings:
    """Return `around`, configured as for a seed if this node is admitted as a reader."""
    if around.config.seed or not around.admission.is_reader(around.identity.peer):
        return around
    say("this node is admitted as a reader: it fetches and serves the run, but never trains")
    return replace(around, config=replace(around.config, seed=True))


async def _join(
    network: Network,
    config: NodeConfig,
    home: Home,
    identity: Identity,
    admission: Admission,
    reception: StartupStatus,
    say: find_run.PrintLine,
    timing: Timing,
) -> Run:
    """Learn the run, connect to a peer if one is reachable, and wait for admission."""
    met = met_before(network, home, reception.journal)
    ways_in = [*config.bootstrap, *met]
    known = find_run.known_run(home, config)
    if ways_in:
        reception.set_state(Connecting())
        others = f" or {len(ways_in) - 1} more" if ways_in[1:] else ""
        say(f"connecting to {ways_in[0]}{others}")
    if known is None:
        waiting = partial(reception.set_state, Connecting())
        run = await first_contact.find_first_run(network, config, ways_in, say, waiting)
    else:
        run = known
    reception.run = run
    if known is None:
        await _check(config, home, run, reception, say)
    asking = partial(reception.set_state, AwaitingAnswer(), consent.HOW_TO_ANSWER)
    amendments: tuple[SignedAmendment, ...] = ()
    if not consent.is_given(run, config, identity.peer, home.agreed):
        amendments = await consent.announced_amendments(network, run, home.amendments)
    await consent.ask_consent(
        run, config, identity.peer, home.agreed, amendments=amendments, asking=asking
    )
    if known is None:
        reception.set_state(Connecting())
        save_run(home.manifest, run)
    admission.set_run(run)
    if known is not None and ways_in:
        of_run = partial(_is_of_run, admission, met)
        await find_run.return_to(network, config, run, ways_in, say, is_of_run=of_run)
        if config.searches_lan and not network.connected():
            await nearby_run.look_nearby(network, say)
    network.refresh_admission()
    say(f"run {run.manifest.name!r} ({run.id[:12]}…), signed by {label(run.manifest.organiser)}")
    for promise in consent.promises():
        say(promise)
    await be_admitted(
        network,
        config,
        identity,
        run,
        admission,
        ways_in,
        reception,
        say,
        draw=random.SystemRandom(),
        look_s=timing.approval_look_s,
    )
    network.refresh_admission()
    return admission.run


def _is_of_run(admission: Admission, met: list[str], peer: PeerId) -> bool:
    """Return whether this home (the folder with a node's files) knows `peer` from its run: because
    the run's manifest or allowlist names it, or because this node has been connected to it."""
    return admission.names(peer) or any(peer in address for address in met)


async def _check(
    config: NodeConfig,
    home: Home,
    run: Run | None,
    reception: StartupStatus,
    say: find_run.PrintLine,
) -> None:
    """Check that this machine can run the node; warn of resources that may run short.
    Raises MachineUnfit, ConfigError, TrainerError: this machine cannot run the node."""
    reception.set_state(Checking())
    found = await trio.to_thread.run_sync(machine_check.check, config, home, run)
    for doubt in reception.doubt([Caution(each.code, each.what, each.do) for each in found]):
        say(f"warning: {doubt.words}")
