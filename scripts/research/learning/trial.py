"""Run one arm, from its start or from its checkpoint, to its record.

The loss is that of θ, the outer parameters, on the same held-out sequences, in fp32. A record
depends only on the settings, except for the CPU time and the order in which a processor sums.
Interruptions do not change it.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from p2ptrain.errors import TrainerDiverged
from p2ptrain.ring.blame import Blamed
from p2ptrain.trainer.rank.bf16_emulation import multiplies_bf16
from p2ptrain.trainer.tools.replica import Replica, one_thread
from scripts.research.learning import checkpoint
from scripts.research.learning.copying import copied
from scripts.research.learning.corpus import Corpus, corpus_for
from scripts.research.learning.record import Record
from scripts.research.learning.results import write_result
from scripts.research.learning.settings import Settings
from scripts.research.learning.swarm import Floats, Swarm

SAVE_EVERY_S = 120.0
"""Interval between checkpoints, in CPU time of this process. An interruption loses at most this."""
HOPELESS = 20.0
"""Loss in nats that counts as diverged. A uniform guess has log(vocab), about 7 nats."""
THETA = "theta.npy"
"""File with the last θ in the trial's folder, so that later measurements do not need training."""
CURVE_SEQUENCES = 64
"""Number of held-out sequences for the points of a curve. The final loss uses all sequences."""


class Cut(Exception):
    """The trial was stopped before its end. Its progress is on disk."""


def run_trial(
    arm: str,
    settings: Settings,
    folder: Path,
    texts: Path,
    stop: Callable[[], bool] = lambda: False,
) -> Record:
    """Run an arm with these settings, with its checkpoint in `folder`, and return its record.

    Raises Cut once `stop` returns True.
    """
    one_thread()
    corpus = corpus_for(settings, texts)
    path = folder / "checkpoint.npz"
    swarm, notes = checkpoint.load(settings, corpus, path) or _new(settings, corpus, texts, stop)
    begun, saved = time.process_time(), time.process_time()

    def keep() -> dict[str, Any]:
        now = {**notes, "cpu_s": notes["cpu_s"] + time.process_time() - begun}
        checkpoint.save(swarm, now, path)
        return now

    curve: list[Any] = notes["curve"]
    diverged = False
    while swarm.inner_step < settings.total_steps and not diverged:
        diverged = not _advanced(swarm, curve)
        if stop():
            keep()
            raise Cut
        if time.process_time() > saved + SAVE_EVERY_S:
            keep()
            saved = time.process_time()
    _keep_theta(swarm.theta, folder)
    cpu_s = round(notes["cpu_s"] + time.process_time() - begun, 1)
    record = Record(
        arm,
        settings.seed,
        settings.digest,
        corpus.digest,
        None,
        tokens_of(swarm),
        swarm.inner_step // settings.schedule.stride if settings.averages else 0,
        cpu_s,
        tuple(tuple(point) for point in curve),
        settings.plain(),
        bf16_products=multiplies_bf16("cpu"),
        theta=_digest(swarm.theta),
        start_theta=notes.get("start_theta"),
        joiners=_of_each(swarm),
        torch=version("torch"),
    )
    return record if diverged else measured(record, swarm.peers[0].replica, swarm.theta, corpus)


def measured(record: Record, replica: Replica, theta: Floats, corpus: Corpus) -> Record:
    """Return the record with the losses of `theta`."""
    strangers = None
    if corpus.strangers is not None:
        strangers = _mean(replica.losses_of(theta, corpus.strangers.astype("int64")))
    found = replica.losses_of(theta, corpus.validation.astype("int64"))
    marks = copied(corpus.validation)
    return replace(
        record,
        loss=_mean(found),
        strangers_loss=strangers,
        copied_loss=_mean(found[marks]),
        other_loss=_mean(found[~marks]),
    )


def _mean(found: Floats) -> float | None:
    return round(float(found.mean(dtype=np.float64)), 6) if found.size else None


def _keep_theta(theta: Floats, folder: Path) -> None:
    """Save θ atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    making = folder / f"making-{os.getpid()}.npy"
    np.save(making, theta)
    os.replace(making, folder / THETA)


def _new(
    settings: Settings, corpus: Corpus, texts: Path, stop: Callable[[], bool]
) -> tuple[Swarm, dict[str, Any]]:
    swarm = Swarm.begin(settings, corpus, _beginning(settings, texts, stop))
    return swarm, {"cpu_s": 0.0, "curve": [], "start_theta": _digest(swarm.theta)}


def _beginning(settings: Settings, texts: Path, stop: Callable[[], bool]) -> Floats | None:
    """Return the θ of the common start, or None if these settings have none.

    This θ is trained once and saved next to the texts. Other processes that need it wait until it
    is saved.

    Raises Cut once `stop` returns True.
    """
    beginning = settings.beginning
    if beginning is None:
        return None
    folder = texts / f"start-{beginning.digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / THETA).exists():
            write_result(run_trial("start", beginning, folder, texts, stop), folder)
        theta: Floats = np.load(folder / THETA)
        return theta


def _digest(theta: Floats) -> str:
    return hashlib.blake2b(theta.tobytes()).hexdigest()[:16]


def _of_each(swarm: Swarm) -> tuple[float, ...]:
    """Return the mean extra loss of new members: one joins in each outer step but the first."""
    joins = swarm.inner_step // swarm.settings.schedule.stride - 1
    return tuple(round(each / max(1, joins), 6) for each in swarm.joiners)


def tokens_of(swarm: Swarm) -> int:
    """Return the committed tokens: those of all assigned blocks that peers no longer hold."""
    book, settings = swarm.book, swarm.settings
    held = sum(len(blocks) for blocks in book.held.values()) + len(book.returned)
    return (book.next_block - held) * settings.peer_sequences * settings.model.sequence


def _advanced(swarm: Swarm, curve: list[Any]) -> bool:
    """Do one inner step, and measure the loss of θ if it is due. Return False on divergence."""
    settings = swarm.settings
    try:
        swarm.advance()
    except (TrainerDiverged, Blamed):
        return False
    last = swarm.inner_step == settings.total_steps
    if last:
        swarm.drain()
    if last or swarm.inner_step % settings.evaluate_every == 0:
        rows = swarm.corpus.validation[:CURVE_SEQUENCES].astype("int64")
        loss = round(swarm.peers[0].replica.loss_of(swarm.theta, rows), 6)
        trained = sum(swarm.losses) / max(1, len(swarm.losses))
        swarm.losses.clear()
        curve.append([swarm.inner_step, loss, round(trained, 6)])
        return math.isfinite(loss) and loss < HOPELESS
    return True
