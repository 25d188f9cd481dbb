"""Before a node takes part in a run for the first time its user sees what that is, and says yes.

Nothing of a run is kept before that. Its organiser is not asked, nor are observers, who take no
part; so an observer's home knows its run, and its user is asked all the same when a node starts.
"""

from __future__ import annotations

import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.data.blocks import encoded_bytes
from p2ptrain.errors import ConfigError
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.observe.states import size
from p2ptrain.prepare.node_memory import NodeMemory, memory_of
from p2ptrain.prepare.run_summary import run_lines
from p2ptrain.run import Run
from p2ptrain.trainer.host.cost import trainer_memory

AGREED = {"y", "yes"}

STEPS_A_DAY = 144
"""Of ten minutes each: twice as long ones take half the traffic."""

HOW_TO_ANSWER = "y or n in the terminal where this node was started; or start it again with --yes"
"""For who asks for the status of a node that asks."""


def promises() -> Iterator[str]:
    """What everybody is told at every start."""
    yield "this software never runs code sent by the run or by peers"
    yield "your IP address is visible to other peers"


def screen(run: Run, config: NodeConfig, me: PeerId) -> Iterator[str]:
    """What the run is, who asks for it, what it takes, and what it never does."""
    yield from run_lines(run)
    manifest = run.manifest
    node = memory_of(run.id, manifest)
    eager = manifest.sync.eager
    trainer = trainer_memory(manifest.model, manifest.inner, "fp32", eager=eager)
    trains = "" if config.seed else f"; the trainer 400 MB, {size(trainer.vectors)} and activations"
    vectors = node.of_seed if config.seed else node.total
    yield f"memory    150 MB and {size(vectors)} for this node{trains}"
    kept = config.keep_snapshots
    snapshots = "every snapshot" if kept is None else f"{kept} snapshots"
    each = size(node.theta + node.momentum)
    keeps_inner = config.keep_inner and not config.seed
    inner = f" the inner optimizer ({each}, while it is written twice)," if keeps_inner else ""
    updates = "every update" if config.seed else "the updates since the oldest"
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
    """By a day of outer steps of ten minutes, since nobody has trained here yet."""
    update = node.updates // 2
    first = f"traffic   a snapshot of {size(node.theta + node.momentum)} comes down first; then,"
    indent, others = " " * 10, "what others ask for (see --limit-up)"
    yield f"{first} if an outer step takes 10 minutes,"
    if config.seed:
        updates = size(update * STEPS_A_DAY)
        yield f"{indent}{updates} of updates a day, and all data; up goes {others}"
        return
    manifest = run.manifest
    vocab, sequence = manifest.model.vocab, manifest.model.sequence
    block = encoded_bytes(vocab, manifest.inner.batch_sequences, sequence)
    down = 2 * update + manifest.blocks_per_step * block
    daily = f"{size(2 * update * STEPS_A_DAY)} up and {size(down * STEPS_A_DAY)} down a day"
    yield f"{indent}up to {daily}; besides, up goes {others}"


async def ask(
    run: Run,
    config: NodeConfig,
    me: PeerId,
    agreed: Path,
    *,
    answers: TextIO | None = None,
    shown: TextIO | None = None,
    asking: Callable[[], object] | None = None,
) -> None:
    """Return if the user agrees to take part in `run`; the file `agreed` remembers it.

    `asking` is called when the user is about to be asked, which may last.

    Raises:
        ConfigError: the user does not, or there is nobody to ask.
    """
    is_organiser = run.manifest.organiser == me
    if config.assume_yes or is_organiser or (agreed.exists() and agreed.read_text() == run.id):
        return
    answers, shown = answers or sys.stdin, shown or sys.stderr
    shown.write("\n" + "".join(f"  {line}\n" for line in screen(run, config, me)) + "\n")
    if not answers.isatty():
        raise ConfigError(
            "this node was never told to take part in this run, and nobody is here to ask",
            code="CONSENT",
            likely="it was started without a terminal",
            do="the same command with --yes, if you agree to what is said above",
        )
    # A key that was pressed while nothing was asked answers nothing, be it yes or no.
    termios.tcflush(answers.fileno(), termios.TCIFLUSH)
    if asking is not None:
        asking()
    shown.write("Take part in it? [y/N] ")
    shown.flush()
    await trio.lowlevel.wait_readable(answers.fileno())
    if answers.readline().strip().lower() not in AGREED:
        raise ConfigError(
            "you did not agree to take part; nothing was kept of the run",
            code="CONSENT",
            do="the same command again, if you change your mind",
        )
    agreed.write_text(run.id)
