"""Show the user a run and ask for consent, before the node takes part in it for the first time.

Until the user agrees, the node stores nothing about the run. The organiser of the run is not asked.
Observers, which only read the run, are not asked either, since they do not take part; but they do
store the run. So if a node starts in a home (the folder with a node's files) that an observer has
used, its user is still asked.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.data.blocks import encoded_bytes
from p2ptrain.errors import ConfigError, PeerError, RemoteProtocolError, RunMismatch, counted
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.net import Network
from p2ptrain.node.gossip.hello_client import send_hello
from p2ptrain.observe.states import duration, size
from p2ptrain.peers.hello_messages import HelloRequest
from p2ptrain.prepare.node_memory import NodeMemory, memory_of
from p2ptrain.prepare.run_summary import run_lines
from p2ptrain.run import Leg, Run, SignedAmendment, load_amendments
from p2ptrain.run.files import amendments_in
from p2ptrain.trainer.host.cost import trainer_memory

AGREED = {"y", "yes"}

SECONDS_PER_DAY = 86_400
STEP_SECONDS = (10, 60, 600)
"""Durations of an outer step for which the traffic of a day is shown. The real one depends on the
members' devices, which are not known yet: small models take seconds, large ones many minutes."""

ASKED_MAX = 3
"""Maximum number of peers that are asked for amendments."""

HOW_TO_ANSWER = (
    "answer y or n in the terminal where you started this node, or restart it with --yes"
)
"""Shown in the status of a node that waits for the user's answer."""


def promises() -> Iterator[str]:
    """Yield the promises that are shown at every start."""
    yield "this software never runs code that the run or other peers send"
    yield "your IP address is visible to other peers"


def as_amended(run: Run, amendments: Iterable[SignedAmendment]) -> tuple[Run, tuple[int, ...]]:
    """Return `run` with the values of all `amendments`, and the numbers of those that apply. Use
    the result for display only: its manifest is not the signed one. An amendment that does not fit
    the run is left out."""
    leg, numbers = Leg(run.manifest), list[int]()
    for each in sorted(amendments, key=lambda each: each.amendment.number):
        if each.amendment.number > leg.number:
            with suppress(ValueError):
                leg = leg.amended(each.amendment)
                numbers.append(leg.number)
    return replace(run, manifest=leg.manifest), tuple(numbers)


async def announced_amendments(
    network: Network, run: Run, path: Path
) -> tuple[SignedAmendment, ...]:
    """Return the amendments of `run` that are stored at `path`, and those that connected peers
    know. The organiser has signed them, so no peer can invent one."""
    known = {each.digest: each for each in load_amendments(path, run)}
    for peer in list(network.connected())[:ASKED_MAX]:
        with suppress(PeerError, RemoteProtocolError, RunMismatch):
            reply = await send_hello(network, peer, HelloRequest(run.id, b""))
            if reply.amendments:
                told = amendments_in(reply.amendments, run)
                known |= {each.digest: each for each in told}
    return tuple(known.values())


def screen(
    run: Run, config: NodeConfig, me: PeerId, amendments: Iterable[SignedAmendment] = ()
) -> Iterator[str]:
    """Yield the lines that describe the run, its organiser, what it needs from this machine, and
    what this software promises. Values are shown as amended."""
    run, numbers = as_amended(run, amendments)
    yield from run_lines(run)
    if numbers:
        named = ", ".join(map(str, numbers))
        yield f"amended   the values above include amendment {named} of the organiser"
    manifest = run.manifest
    node = memory_of(run.id, manifest)
    eager = manifest.sync.eager
    trainer = trainer_memory(manifest.model, manifest.inner, "fp32", eager=eager)
    trains = f"; the trainer needs 400 MB, {size(trainer.vectors)} for the model, and activations"
    vectors = node.of_seed if config.seed else node.total
    needs = f"memory    the node needs 150 MB, and {size(vectors)} for the model"
    yield needs if config.seed else needs + trains
    kept = config.keep_snapshots
    snapshots = "every snapshot" if kept is None else counted(kept, "snapshot")
    each = size(node.theta + node.momentum)
    keeps_inner = config.keep_inner and not config.seed
    inner = f" the inner optimizer ({each}, twice that while it is written)," if keeps_inner else ""
    updates = "every update" if config.seed else "the updates since the oldest snapshot"
    data = "all data" if config.seed else f"data up to {size(config.data_cache_bytes)}"
    yield (
        f"disk      {snapshots} of {each}, one more while it is written, "
        f"{updates},{inner} and {data}"
    )
    yield from _traffic(run, config, node)
    yield f"you are   {label(me)}"
    for number, promise in enumerate(promises()):
        yield ("know that " if number == 0 else " " * 10) + promise


def _traffic(run: Run, config: NodeConfig, node: NodeMemory) -> Iterator[str]:
    """Yield lines that state the traffic of an outer step, and estimate that of a day for several
    durations of an outer step, because the real duration is not known yet."""
    update, manifest = node.updates // 2, run.manifest
    first = f"traffic   downloads a snapshot of {size(node.theta + node.momentum)} first; then,"
    indent, others = " " * 10, "data that other peers ask for (see --limit-up)"
    yield f"{first} in each outer step,"
    if config.seed:
        yield f"{indent}downloads {size(update)} of updates, and all data once; uploads {others}"
        yield from (f"{indent}{line}" for line in _daily(0, update))
        return
    vocab, sequence = manifest.model.vocab, manifest.model.sequence
    block = encoded_bytes(vocab, manifest.inner.batch_sequences, sequence)
    down = 2 * update + manifest.blocks_per_step * block
    yield f"{indent}up to {size(2 * update)} up and {size(down)} down; also uploads {others}"
    yield from (f"{indent}{line}" for line in _daily(2 * update, down))


def _daily(up: int, down: int) -> Iterator[str]:
    """Yield the traffic of a day with `up` and `down` bytes in each outer step."""
    yield "how long an outer step takes depends on the members' devices; a day of steps of"
    for seconds in STEP_SECONDS:
        steps = SECONDS_PER_DAY // seconds
        sent = f"{size(up * steps)} up and " if up else ""
        yield f"  {duration(seconds):>6} is {sent}{size(down * steps)} down"


def is_given(run: Run, config: NodeConfig, me: PeerId, agreed: Path) -> bool:
    """Return whether the user need not be asked: because of --yes, or an earlier consent to this
    run, or because the user is its organiser."""
    is_organiser = me in run.organisers
    known = agreed.exists() and agreed.read_text() == run.id
    return config.assume_yes or is_organiser or known


async def ask_consent(
    run: Run,
    config: NodeConfig,
    me: PeerId,
    agreed: Path,
    *,
    amendments: Iterable[SignedAmendment] = (),
    answers: TextIO | None = None,
    shown: TextIO | None = None,
    asking: Callable[[], object] | None = None,
) -> None:
    """Return once the user has agreed to take part in `run`. The consent is recorded in the file
    `agreed`, also if the user gave it with --yes. Observers do not take part, so theirs is not.

    `asking` is called just before the user is asked, to show in the status that the node waits for
    the answer. `answers` and `shown`: the terminal's input and output.

    Raises ConfigError: the user does not agree, or there is no terminal on which to ask."""
    if is_given(run, config, me, agreed):
        if config.assume_yes and not config.observes:
            agreed.write_text(run.id)
        return
    answers, shown = answers or sys.stdin, shown or sys.stderr
    lines = screen(run, config, me, amendments)
    shown.write("\n" + "".join(f"  {line}\n" for line in lines) + "\n")
    if not answers.isatty():
        raise ConfigError(
            "you have not agreed to take part, and there is no terminal on which to ask you",
            code="CONSENT",
            likely="the node was started without a terminal",
            do="if you agree to the text above, repeat the command with --yes",
        )
    # Keys pressed before the question do not count as an answer.
    termios.tcflush(answers.fileno(), termios.TCIFLUSH)
    if asking is not None:
        asking()
    shown.write("Do you want to take part? [y/N] ")
    shown.flush()
    await trio.lowlevel.wait_readable(answers.fileno())
    if answers.readline().strip().lower() not in AGREED:
        raise ConfigError(
            "you did not agree to take part; nothing about the run was stored",
            code="CONSENT",
            do="if you change your mind, repeat the command",
        )
    agreed.write_text(run.id)
