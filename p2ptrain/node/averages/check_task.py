"""After each outer step, check one chunk of its average.

The digest of the Commit entry and this node's own id draw the chunk, so nobody knows beforehand
which part of an average is checked. All members together check many chunks. The check runs while
the trainers work on the next outer step. Nothing waits for it. The journal has the result, and the
user is warned if the average is wrong. This node accuses a participant that has signed a wrong sum
in the next attempt that includes it (`reduce_request.refuse_liars`).
"""

from __future__ import annotations

from dataclasses import asdict

import trio

from p2ptrain.archive.own_claims import KEPT_STEPS
from p2ptrain.errors import P2PTrainError
from p2ptrain.node.averages.checking import CheckedChunk, check_chunk
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution
from p2ptrain.suggested_command import to_paste

WARNING = "average"

TRIES = 5
AGAIN_S = 5.0
"""Number of times that a check is tried if contributions are missing, and the seconds between two
tries. A participant may be busy or out of reach for a moment."""


async def check_averages(context: Context) -> None:
    """Check a chunk of each average that this node has applied, until cancelled. If there are
    several, check the newest one: the contributions to the others may be gone."""
    if not context.ledger.rules.claims:
        return
    while context.outer.step is None:
        await context.changes.wait_calmly()
    due = context.outer.step
    while True:
        seen = context.changes.count
        done = context.outer.step
        if done is None or done <= due or not context.at_head():
            await context.changes.wait_calmly(since=seen)
            continue
        due, step = done, done - 1
        if step not in context.ledger.core.updates:
            continue  # The outer step was skipped, or its Commit has been pruned.
        await _check(context, step)


async def _check(context: Context, step: int) -> None:
    begun_s = context.now()
    try:
        found = await _checked_patiently(context, step)
    except P2PTrainError as exc:
        context.journal.write("average-unchecked", step=step, code=exc.code, reason=exc.what)
        return
    context.journal.write(
        "average-checked",
        step=step,
        chunk=found.chunk,
        chunks=found.chunks,
        good=found.is_good,
        missing=found.missing,
        wrong=found.wrong,
        named=[asdict(each) for each in found.named],
        seconds=context.now() - begun_s,
    )
    if found.wrong:
        context.alerts.show(WARNING, _caution(context, found))
    context.changes.notify_all()


async def _checked_patiently(context: Context, step: int) -> CheckedChunk:
    """Check a chunk. While contributions are missing, try again until they are no longer kept."""
    for _ in range(TRIES):
        found = await check_chunk(context, step)
        is_kept = context.ledger.snapshot.step <= step + KEPT_STEPS
        if not found.missing or not is_kept:
            break
        await trio.sleep(AGAIN_S)
    return found


def _caution(context: Context, found: CheckedChunk) -> Caution:
    command = to_paste(context.home.root, f"verify --average {found.step} --chunks 8")
    return Caution("AVERAGE-WRONG", found.words, f"tell the organiser; {command} checks more")
