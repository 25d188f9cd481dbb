"""Show the user a run and ask for consent, before the node takes part in it for the first time.

Until the user agrees, the node stores nothing about the run. The organiser of the run is not asked.
Observers, which only read the run, are not asked either, since they do not take part; but they do
store the run. So if a node starts in a home (the folder with a node's files) that an observer has
used, its user is still asked.
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
from p2ptrain.errors import ConfigError, counted
from p2ptrain.ids import PeerId
from p2ptrain.names import label
from p2ptrain.observe.states import size
from p2ptrain.prepare.node_memory import NodeMemory, memory_of
from p2ptrain.prepare.run_summary import run_lines
from p2ptrain.run import Run
from p2ptrain.trainer.host.cost import trainer_memory

AGREED = {"y", "yes"}

STEPS_A_DAY = 144
"""Number of outer steps in a day if each one takes ten minutes. If steps take longer, there is less
traffic than estimated."""

HOW_TO_ANSWER = (
    "answer y or n in the terminal where you started this node, or restart it with --yes"
)
"""Shown in the status of a node that waits for the user's answer."""


def promises() -> Iterator[str]:
    """Yield the promises that are shown at every start."""
    yield "this software never runs code that the run or other peers send"
    yield "your IP address is visible to other peers"


def screen(run: Run, config: NodeConfig, me: PeerId) -> Iterator[str]:
    """Yield the lines that describe the run, its organiser, what it needs from this machine, and
    what this software promises."""
    yield from run_lines(run)
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
    """Yield lines that estimate the traffic of a day. They assume outer steps of ten minutes,
    because the real duration is not known yet."""
    update = node.updates // 2
    first = f"traffic   downloads a snapshot of {size(node.theta + node.momentum)} first; then,"
    indent, others = " " * 10, "data that other peers ask for (see --limit-up)"
    yield f"{first} if an outer step takes 10 minutes,"
    if config.seed:
        updates = size(update * STEPS_A_DAY)
        yield f"{indent}downloads {updates} of updates a day, and all data; uploads {others}"
        return
    manifest = run.manifest
    vocab, sequence = manifest.model.vocab, manifest.model.sequence
    block = encoded_bytes(vocab, manifest.inner.batch_sequences, sequence)
    down = 2 * update + manifest.blocks_per_step * block
    daily = f"{size(2 * update * STEPS_A_DAY)} up and {size(down * STEPS_A_DAY)} down a day"
    yield f"{indent}up to {daily}; also uploads {others}"


async def ask_consent(
    run: Run,
    config: NodeConfig,
    me: PeerId,
    agreed: Path,
    *,
    answers: TextIO | None = None,
    shown: TextIO | None = None,
    asking: Callable[[], object] | None = None,
) -> None:
    """Return once the user has agreed to take part in `run`. If the user was asked, the consent is
    recorded in the file `agreed`.

    `asking` is called just before the user is asked, to show in the status that the node waits for
    the answer. `answers` and `shown`: the terminal's input and output.

    Raises ConfigError: the user does not agree, or there is no terminal on which to ask."""
    is_organiser = me in run.organisers
    if config.assume_yes or is_organiser or (agreed.exists() and agreed.read_text() == run.id):
        return
    answers, shown = answers or sys.stdin, shown or sys.stderr
    shown.write("\n" + "".join(f"  {line}\n" for line in screen(run, config, me)) + "\n")
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
