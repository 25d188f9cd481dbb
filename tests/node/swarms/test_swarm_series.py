"""The nodes of a swarm record the history of the run, and it agrees with their journals."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from p2ptrain.observe.journal import read_journal
from p2ptrain.observe.series import PeerStepRow, SeriesReader, SeriesUnavailable, StepRow
from tests.node.swarm import Swarm, SwarmNode, swarm

STEPS = 5
TRAINERS = ("ann", "bob", "cai")


def rows_of(node: SwarmNode) -> tuple[list[StepRow], list[PeerStepRow]]:
    try:
        with SeriesReader(node.home.series) as reader:
            return reader.steps(), reader.peer_steps(0)
    except SeriesUnavailable:
        return [], []


def rows_up_to(node: SwarmNode, step: int) -> list[StepRow]:
    """Return the rows of outer steps once they reach `step`; [] before."""
    rows = rows_of(node)[0]
    return rows if rows and rows[-1].step >= step else []


def kinds_of(node: SwarmNode) -> list[str]:
    with SeriesReader(node.home.series) as reader:
        return [row.kind for _, row in reader.events(limit=1000)]


def reported(node: SwarmNode, step: int) -> set[str]:
    """Return the peers whose reports on this outer step are in the series of `node`."""
    return {row.peer for row in rows_of(node)[1] if row.step == step and row.version is not None}


async def all_are_members(s: Swarm) -> None:
    """Wait until no trainer can miss the first outer step, even if they start slowly."""
    ledger = s.seed.context.ledger
    await s.until(lambda: all(s[name].peer in ledger.snapshot.members for name in TRAINERS))


async def step_with_reports(s: Swarm, names: tuple[str, ...] = TRAINERS) -> None:
    """Let the run make one outer step, and wait until all nodes have all reports on it."""
    await s.stand_still()
    step = max(node.step for node in s.up)
    wanted = {s[name].peer for name in names}
    await s.until(lambda: all(reported(node, step) >= wanted for node in s.up))


def by_journal(node: SwarmNode, until_step: int) -> Counter[str]:
    """Return what a node's journal says about its outer steps up to `until_step`, in ms and
    bytes. `total_ms` is the time from its first outer step to the end of the last one."""
    sums, begun = Counter[str](), 0.0
    for record in read_journal(node.home.journal):
        number = {name: value for name, value in record.items() if isinstance(value, int | float)}
        match record["event"]:
            case "caught-up":
                begun = number["monotonic_s"]
            case "inner-step":
                sums["train_ms"] += 1000 * (number["seconds"] - number["data_wait_s"])  # type: ignore[assignment]
                sums["data_wait_ms"] += 1000 * number["data_wait_s"]  # type: ignore[assignment]
            case "exchange-done":
                sums["exchange_ms"] += 1000 * number["seconds"]  # type: ignore[assignment]
                sums["bytes_up"] += int(number["sent_bytes"])
                sums["bytes_down"] += int(number["received_bytes"])
            case "committed":
                sums["fetch_ms"] += 1000 * number.get("fetch_s", 0)  # type: ignore[assignment]
                sums["apply_ms"] += 1000 * number.get("apply_s", 0)  # type: ignore[assignment]
                sums["total_ms"] = 1000 * (number["monotonic_s"] - begun)  # type: ignore[assignment]
                if number["step"] + 1 == until_step:
                    break
    return sums


SPENT = ("train_ms", "data_wait_ms", "wait_ms", "exchange_ms", "fetch_ms", "apply_ms")


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of some outer steps in ms and bytes: of the rows of one peer in another node's
    series (`told`), and of the peer's own journal (`said`)."""

    told: Counter[str]
    said: Counter[str]


async def waterfall(
    folder: Path, count: int = STEPS
) -> tuple[list[StepRow], list[PeerStepRow], dict[str, Sums]]:
    """Let the run make `count` outer steps. Return the rows in the series of a member, and the sums
    for each trainer."""
    async with swarm(folder, steps=1000, stops_at=0) as s:
        await all_are_members(s)
        for name in TRAINERS:
            s[name].remote.data_wait_s = 0.004
        for _ in range(count):
            await step_with_reports(s)
        last = s["ann"].step
        steps, peers = rows_of(s["ann"])
        s.stop_at(None)
    sums = dict[str, Sums]()
    for name in TRAINERS:
        told = Counter[str]()
        for row in peers:
            if row.peer == s[name].peer:
                told.update({each: getattr(row, each) or 0 for each in (*SPENT, "bytes_up")})
                told["bytes_down"] += row.bytes_down or 0
        told["total_ms"] = sum(told[each] for each in SPENT)
        sums[name] = Sums(told, by_journal(s[name], last))
    return steps, peers, sums


async def test_waterfall_agrees_with_the_journals_of_all_nodes(tmp_path: Path) -> None:
    steps, peers, sums = await waterfall(tmp_path)
    for name, both in sums.items():
        assert both.said.keys() <= both.told.keys()
        for each, value in both.said.items():
            # Rounding to whole milliseconds loses less than 1 ms over all steps.
            assert both.told[each] == pytest.approx(value, rel=0.02, abs=1.0), (name, each)
    assert sum(row.tokens or 0 for row in steps) == sum(row.tokens or 0 for row in peers)
    assert steps[-1].tokens_total == sum(row.tokens or 0 for row in steps) > 0


async def test_rows_tell_what_the_ledger_and_the_members_say(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=1000, stops_at=0) as s:
        await all_are_members(s)
        for _ in range(3):
            await step_with_reports(s)
        step = s.seed.step
        chain = s.seed.context.ledger.history
        tokens = {each.peer: each.tokens for each in chain.participants(step - 1)}
        found = [rows_of(node) for node in s.up]
        paths = {row.path for row in rows_of(s["ann"])[1] if row.peer == s["bob"].peer}
        s.stop_at(None)
    for steps, peers in found:
        assert [row.step for row in steps] == list(range(1, step + 1))
        newest, rows = steps[-1], [row for row in peers if row.step == step]
        assert newest.time is not None
        assert (newest.skipped, newest.participants) == (0, len(tokens))
        assert (newest.tokens, newest.loss) == (sum(tokens.values()), 2.0)
        assert {row.peer: row.tokens for row in rows if row.tokens} == tokens
        assert {row.loss for row in rows if row.tokens} == {2.0}
        assert {row.gradient_norm for row in rows if row.tokens} == {1.5}
        assert all(row.told_by is None for row in peers)
    assert "direct" in paths


async def test_events_tell_who_joins_and_leaves(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=1000) as s:
        await s.go_on(2)
        await s["cai"].leave()
        await s.until(lambda: "leave" in kinds_of(s.seed))
        with SeriesReader(s.seed.home.series) as reader:
            events = [row for _, row in reader.events(limit=1000)]
    joined = {row.peer for row in events if row.kind == "join"}
    assert joined == {s[name].peer for name in TRAINERS}
    (left,) = (row for row in events if row.kind == "leave")
    assert left.peer == s["cai"].peer
    assert left.text.endswith(" left.")


async def test_restarted_node_continues_its_series(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=1000, stops_at=0) as s:
        await all_are_members(s)
        await step_with_reports(s)
        await s.stop("cai")
        before = rows_of(s["cai"])[0]
        s.stop_at(None)
        await s.go_on(2, "ann", "bob")
        await s.start("cai")
        await s.go_on(2)
        s.stop_at(s["cai"].step)
        after = await s.until(lambda: rows_up_to(s["cai"], s["cai"].step))
        s.stop_at(None)
    assert [row.step for row in after] == list(range(1, after[-1].step + 1))
    assert after[: len(before)] == before


async def test_lost_disk_of_the_series_is_a_warning_and_nothing_else(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=1000) as s:
        await s.go_on(1)
        series = s["ann"].home.series
        await s.stop("ann")
        for path in series.parent.glob("series.db*"):
            path.unlink()
        series.mkdir()
        await s.start("ann")
        await s.go_on(2)
        await s.until(lambda: "series" in s["ann"].context.alerts)
        assert s["ann"].context.alerts.warnings["series"].code == "SERIES"
        series.rmdir()
        await s.go_on(1)
        await s.until(lambda: "series" not in s["ann"].context.alerts)
        assert rows_of(s["ann"])[0]


async def test_locked_series_does_not_delay_the_run(tmp_path: Path) -> None:
    async with swarm(tmp_path, steps=1000) as s:
        await s.go_on(1)
        await s.until(lambda: rows_of(s["ann"])[0])
        locker = sqlite3.connect(s["ann"].home.series, isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        await s.go_on(3)
        await s.until(lambda: s["ann"].context.alerts.warnings.get("series"))
        locker.execute("ROLLBACK")
        locker.close()
        await s.until(lambda: rows_up_to(s["ann"], s["ann"].step))


async def test_newcomer_learns_the_history_from_members(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), later=("cai",), steps=1000) as s:
        for _ in range(2):
            await step_with_reports(s, ("ann", "bob"))
        await s.start("cai")
        await step_with_reports(s, ("ann", "bob"))
        known, peers = rows_of(s["ann"])

        def is_learnt() -> bool:
            with SeriesReader(s["cai"].home.series) as reader:
                return all(row.time for row in reader.steps_between(1, 2))

        await s.until(is_learnt)
        learnt, of_peers = rows_of(s["cai"])
        s.stop_at(None)
    members = {s[name].peer for name in ("seed", "ann", "bob")}
    for row, original in zip(learnt[:2], known[:2], strict=True):
        assert row.told_by in members
        assert row.time == pytest.approx(original.time, abs=60.0)
        assert (row.step, row.tokens, row.loss) == (original.step, original.tokens, original.loss)
    reports = {(row.step, row.peer): (row.train_ms, row.tokens) for row in peers if row.version}
    found = {(row.step, row.peer): (row.train_ms, row.tokens) for row in of_peers if row.version}
    assert reports.items() <= found.items()
