"""A long and plausible history of a run, made in seconds: for tests of pages and charts, and for
pictures of them.

By default, 24 peers train 600 outer steps: they join one after another, have different devices and
connections, pause, leave and come back; some steps are retried or skipped; the loss falls. The same
seed gives the same history. `python -m p2ptrain.testing.series_history FILE` writes one.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.observe.series.rows import EventRow, PeerStepRow, Row, SampleRow, StepRow
from p2ptrain.observe.series.writer import SeriesWriter

STEP_S = 30.0
BATCH = 16
DEVICES = (("cuda", 21_000, 0.41), ("cuda", 9_000, 0.33), ("cpu", 800, None), ("mps", 2_400, None))
VERSIONS = ("0.9.0", "0.9.0", "0.9.1", "0.8.4")
PATHS = ("direct", "direct", "punched", "relayed")
PROMPTS = 3
ENDINGS = (
    " the the of the and the a the of of and the",
    " there was a little dog and the dog was a dog of the day",
    " there was a little girl who lived near the sea with her grandmother.",
    " there was a lighthouse keeper who wrote a letter to every ship that passed.",
)


@dataclass(frozen=True, slots=True)
class PeerStory:
    """The facts about one peer, and the outer steps in which it is a member."""

    peer: PeerId
    device: str
    tokens_per_s: float
    mfu: float | None
    version: str
    path: str
    present: tuple[range, ...]

    def is_in(self, step: int) -> bool:
        return any(step in part for part in self.present)


def history(
    peers: int = 24, steps: int = 600, *, seed: int = 0, ends_s: float = 1_790_000_000.0
) -> Iterator[list[Row]]:
    """Yield the rows of each outer step. The last one ends at `ends_s`, in Unix seconds."""
    chance = random.Random(seed)
    stories = [_story(chance, number, peers, steps) for number in range(peers)]
    time_s, total = ends_s - steps * STEP_S, 0
    for step in range(1, steps + 1):
        time_s += STEP_S
        rows = _outer_step(chance, stories, step, steps, time_s)
        made = next(row for row in rows if isinstance(row, StepRow))
        total += made.tokens or 0
        yield [_with_total(row, total) if row is made else row for row in rows]
    yield [EventRow(time_s, steps, "end", "", f"The run is complete after {steps} outer steps.")]


def write_history(
    path: Path, run: str, *, peers: int = 24, steps: int = 600, seed: int = 0
) -> None:
    """Write a history to a new series at `path`."""
    writer = SeriesWriter(path, run)
    try:
        waiting: list[Row] = []
        for number, rows in enumerate(history(peers, steps, seed=seed)):
            waiting += rows
            if number % BATCH == 0:
                writer.write(waiting)
                waiting = []
        writer.write(waiting)
        writer.thin()
    finally:
        writer.close()


def _with_total(row: Row, total: int) -> Row:
    assert isinstance(row, StepRow)
    return replace(row, tokens_total=total)


def _story(chance: random.Random, number: int, peers: int, steps: int) -> PeerStory:
    device, tokens_per_s, mfu = DEVICES[number % len(DEVICES)]
    joins = 1 if number < 3 else 1 + int(0.7 * steps * number / peers)
    leaves = steps + 1 if number % 5 else max(joins + 2, int(steps * chance.uniform(0.6, 0.9)))
    parts = [range(joins, leaves)]
    if number % 4 == 3 and leaves - joins > 40:
        away = chance.randrange(joins + 10, leaves - 20)
        parts = [range(joins, away), range(away + 15, leaves)]
    return PeerStory(
        Identity.from_seed(bytes([number + 1]) * 32).peer,
        device,
        tokens_per_s * chance.uniform(0.7, 1.2),
        mfu,
        VERSIONS[number % len(VERSIONS)],
        PATHS[number % len(PATHS)],
        tuple(parts),
    )


def _outer_step(
    chance: random.Random, stories: Sequence[PeerStory], step: int, steps: int, time_s: float
) -> list[Row]:
    members = [each for each in stories if each.is_in(step)]
    skipped = step % 97 == 0
    attempt = 1 if skipped or step % 31 == 0 else 0
    late = {each.peer for each in members if chance.random() < 0.03}
    exchange_ms = int(chance.lognormvariate(math.log(1800 + 40 * len(members)), 0.25))
    exchange_ms += 4000 * attempt
    loss = 2.1 + 8.5 * math.exp(-step / (0.12 * steps)) + 2.0 / math.sqrt(step)
    peer_rows = [
        _peer_step(chance, each, step, loss, exchange_ms, each.peer in late or skipped)
        for each in members
    ]
    row = StepRow(
        step=step,
        time=time_s,
        attempt=attempt,
        skipped=int(skipped),
        members=len(members),
        participants=sum(1 for each in peer_rows if each.tokens),
        tokens=sum(each.tokens or 0 for each in peer_rows),
        loss=sum(each.loss or 0.0 for each in peer_rows) / len(peer_rows),
        held_out=loss + 0.05 if step % 5 == 0 else None,
        learning_rate=3e-4 * min(1.0, step / 50) * (1 - 0.9 * step / steps),
        gradient_norm=0.4 + 2.0 / math.sqrt(step),
        exchange_ms=exchange_ms,
        bytes_up=48_000_000,
        bytes_down=48_000_000 + 9_000 * len(members),
    )
    events = _events(chance, stories, late, row, time_s)
    return [row, *peer_rows, *events, *_samples(members, step, steps)]


def _peer_step(
    chance: random.Random, who: PeerStory, step: int, loss: float, exchange_ms: int, late: bool
) -> PeerStepRow:
    busy_ms = STEP_S * 1000 - exchange_ms
    train_ms = int(busy_ms * chance.uniform(0.75, 0.97))
    data_ms = int(0.02 * train_ms)
    return PeerStepRow(
        step=step,
        peer=who.peer,
        tokens=0 if late else int(who.tokens_per_s * train_ms / 1000),
        contributed=0 if late else 1,
        train_ms=train_ms,
        data_wait_ms=data_ms,
        wait_ms=max(0, int(busy_ms) - train_ms - data_ms - 120),
        exchange_ms=0 if late else exchange_ms,
        fetch_ms=900 if late else 0,
        apply_ms=120,
        bytes_up=0 if late else int(48e6 * chance.uniform(0.98, 1.02)),
        bytes_down=int(48e6 * chance.uniform(0.98, 1.02)),
        loss=loss + chance.gauss(0, 0.06),
        gradient_norm=0.4 + 2.0 / math.sqrt(step) + abs(chance.gauss(0, 0.05)),
        cosine=None if late else min(1.0, 0.55 + 0.3 * chance.random()),
        quantisation_error=None if late else 0.006 + 0.002 * chance.random(),
        mfu=None if who.mfu is None else who.mfu * chance.uniform(0.92, 1.04),
        device=who.device,
        version=who.version,
        path=who.path,
    )


def _events(
    chance: random.Random,
    stories: Sequence[PeerStory],
    late: set[PeerId],
    row: StepRow,
    time_s: float,
) -> Iterator[EventRow]:
    step = row.step

    def told(kind: str, text: str, peer: str = "") -> EventRow:
        return EventRow(time_s - chance.uniform(1, STEP_S), step, kind, peer, text)

    for each in stories:
        name = peer_name(each.peer)
        if each.is_in(step) and not each.is_in(step - 1):
            yield told("join", f"{name} joined the run.", each.peer)
        if not each.is_in(step) and each.is_in(step - 1):
            kind = chance.choice(("leave", "lost"))
            words = "left the run." if kind == "leave" else "is lost: nobody hears it any more."
            yield told(kind, f"{name} {words}", each.peer)
    if row.skipped:
        yield told("skip", f"The members skipped outer step {step}: two attempts failed.")
    elif row.attempt:
        yield told("retry", f"The exchange of outer step {step} failed and was repeated.")
    if late and chance.random() < 0.2:
        peer = min(late)
        waits = f"Outer step {step} waited 40 s, usually 30 s: {peer_name(peer)} was late."
        yield told("stall", waits, peer)
    if step % 50 == 0:
        yield told("snapshot", f"The members certified a snapshot of outer step {step}.")
    if row.held_out is not None:
        yield told("validation", f"Outer step {step} has a held-out loss of {row.held_out:.2f}.")
    if step == 300:
        yield told(
            "amendment", "The members agreed to an amendment: 200 inner steps from step 301."
        )


def _samples(members: Sequence[PeerStory], step: int, steps: int) -> Iterator[SampleRow]:
    if step % 20 == 0 and members:
        peer = members[step % len(members)].peer
        ending = ENDINGS[min(len(ENDINGS) - 1, len(ENDINGS) * step // (steps + 1))]
        for number in range(PROMPTS):
            yield SampleRow(step, number, peer, ending)


if __name__ == "__main__":
    write_history(Path(sys.argv[1]), "00" * 32)
