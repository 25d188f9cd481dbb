"""One arm, from its start or from where it was cut, to its record.

Always evaluated on θ, the outer parameters, on the same held-out sequences, in fp32. What a record
holds follows from the settings alone, but for the seconds that it took and the order in which a
processor sums: cut it wherever you like.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2ptrain.data.blocks import Tokens
from p2ptrain.errors import TrainerDiverged
from p2ptrain.ring.blame import Blamed
from p2ptrain.testing.learning import checkpoint
from p2ptrain.testing.learning.corpus import corpus_for
from p2ptrain.testing.learning.settings import Settings
from p2ptrain.testing.learning.swarm import Swarm
from p2ptrain.trainer.products import multiplies_bf16
from p2ptrain.trainer.replica import one_thread

SAVE_EVERY_S = 120.0
"""Of this process's CPU time: what a cut costs at most."""
HOPELESS = 20.0
"""A loss that no model has that learns: a uniform guess has log(vocab), some 7 nats."""
THETA = "theta.npy"
"""In the trial's folder, at its end: what else might be measured of it later needs no training."""
CURVE_SEQUENCES = 64
"""The held-out sequences that a curve is drawn from, the first ones. The end is measured on all."""


@dataclass(frozen=True, slots=True)
class Record:
    """How an arm ended: `loss` is that of θ on all held-out sequences, None if the arm diverged.

    `curve` is (inner steps, loss of θ on some of them, mean loss in training since the last);
    `text` names the corpus. `strangers_loss` is that of θ on the corpus' strangers, if it has any.
    Where the processor could not multiply in bf16, `bf16_products` is False: `trainer.products`.
    """

    arm: str
    seed: int
    digest: str
    text: str
    loss: float | None
    tokens: int
    outer_steps: int
    cpu_s: float
    curve: tuple[tuple[int, float, float], ...]
    settings: dict[str, Any]
    strangers_loss: float | None = None
    bf16_products: bool = True

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Record:
        return cls(**{**plain, "curve": tuple(tuple(point) for point in plain["curve"])})


class Cut(Exception):
    """The trial was to stop before its end; what it had done is on disk."""


def run_trial(
    arm: str,
    settings: Settings,
    folder: Path,
    texts: Path,
    stop: Callable[[], bool] = lambda: False,
) -> Record:
    """The record of `settings`, its checkpoint kept in `folder` meanwhile.

    Raises Cut once `stop` says so.
    """
    one_thread()
    corpus = corpus_for(settings, texts)
    path = folder / "checkpoint.npz"
    kept = checkpoint.load(settings, corpus, path)
    swarm, notes = kept or (Swarm.begin(settings, corpus), {"cpu_s": 0.0, "curve": []})
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
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / THETA, swarm.theta)
    return Record(
        arm,
        settings.seed,
        settings.digest,
        corpus.digest,
        None if diverged else _loss(swarm, corpus.validation),
        tokens_of(swarm),
        swarm.inner_step // settings.schedule.stride if settings.averages else 0,
        round(notes["cpu_s"] + time.process_time() - begun, 1),
        tuple(tuple(point) for point in curve),
        settings.plain(),
        None if diverged or corpus.strangers is None else _loss(swarm, corpus.strangers),
        multiplies_bf16("cpu"),
    )


def tokens_of(swarm: Swarm) -> int:
    """What has been trained and committed: all that was handed out and is held by nobody."""
    book, settings = swarm.book, swarm.settings
    held = sum(len(blocks) for blocks in book.held.values()) + len(book.returned)
    return (book.next_block - held) * settings.peer_sequences * settings.model.sequence


def _advanced(swarm: Swarm, curve: list[Any]) -> bool:
    """One inner step, and the loss of θ where it is due. Whether there is any use in going on."""
    settings = swarm.settings
    try:
        swarm.advance()
    except (TrainerDiverged, Blamed):
        return False
    last = swarm.inner_step == settings.total_steps
    if last:
        swarm.drain()
    if last or swarm.inner_step % settings.evaluate_every == 0:
        loss = _loss(swarm, swarm.corpus.validation[:CURVE_SEQUENCES])
        trained = sum(swarm.losses) / max(1, len(swarm.losses))
        swarm.losses.clear()
        curve.append([swarm.inner_step, loss, round(trained, 6)])
        return math.isfinite(loss) and loss < HOPELESS
    return True


def _loss(swarm: Swarm, rows: Tokens) -> float:
    """Of θ, on these sequences."""
    return round(swarm.peers[0].replica.loss_of(swarm.theta, rows.astype("int64")), 6)
