"""A run that its organiser amends: real nodes, simulated trainers, the real commands."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.cli.main import main
from p2ptrain.ipc import frames
from p2ptrain.ledger.chain.values import Roster
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, SwarmNode, swarm


async def command(*words: object) -> int:
    """Run `p2ptrain` with these arguments, and return its exit status."""
    return await trio.to_thread.run_sync(partial(main, [str(word) for word in words]))


async def test_amended_codec_and_inner_steps_apply_to_all_from_one_outer_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cai is down while the run is amended, the trainer of Bob dies, and Dan joins afterwards."""
    # With a long grace period no member is left out. Otherwise it would later contribute more
    # blocks than one lease, and `check_terms` could not tell the amended size of a lease.
    rules = policy(grace_s=30.0)
    async with swarm(tmp_path, later=("dan",), steps=10_000, rules=rules, stops_at=1) as s:
        await s.until(lambda: s.at_step(1))
        await s.stop("cai")
        step = s.seed.step + 3
        changes = ("--inner-steps", 3, "--codec", "fp16", "--lr", 0.05)
        home = ("--home", s.seed.home.root)
        assert await command("run", "amend", "swarm", "--from-step", step, *changes, *home) == 0
        await s.until(lambda: all(node.context.ledger.core.reports.terms for node in s.up))
        s.stop_at(step - 1)
        await s.until(lambda: agreed(s.seed))
        assert s.seed.step < step
        s.stop_at(None)
        s["bob"].remote.dies = True
        await s.until(lambda: s.at_step(step + 1))
        await s.start("cai", "dan")
        await s.until(lambda: s.credits("dan") and s.credits("cai")[-1:] > [step])
        await s.stand_still()
        s.check_equal()
        s.check_chain()
        check_terms(s, step)
        capsys.readouterr()
        assert await command("verify", "--from", "genesis", *home, "--json") == 0
        audited = json.loads(capsys.readouterr().out)
        assert (audited["good"], audited["missing"]) == (True, None)
        assert audited["updates"] > step
        assert await command("ledger", "verify", "--home", s["dan"].home.root, "--json") == 0
        (named,) = json.loads(capsys.readouterr().out)["amendments"]
        assert (named["from_step"], named["held"]) == (step, True)


def agreed(node: SwarmNode) -> bool:
    """Return whether the amendment is agreed, according to the ledger of `node`."""
    return bool(node.context.ledger.snapshot.terms)


def check_terms(s: Swarm, step: int) -> None:
    """Check the codec of updates, the size of leases and the learning rates: before `step` they
    must be those of the manifest, and from then on those of the amendment."""
    context = s.seed.context
    metas = [
        (at, context.store.manifest(update).meta["codec"]) for at, update, _ in s.committed(s.seed)
    ]
    assert metas
    assert metas == [(at, "int8" if at < step else "fp16") for at, _ in metas]
    named = [
        each.entry.value.step
        for each in context.ledger.core.chain
        if isinstance(each.entry.value, Roster) and each.entry.value.terms is not None
    ]
    assert [at < step for at in named] == [True]
    fresh = [
        {len(blocks) for blocks in credits.values()}
        for at, _, credits in s.committed(s.seed)
        if at > step
    ]
    assert fresh
    assert all(sizes == {3} for sizes in fresh)
    for name in ("ann", "bob", "dan"):
        obeyed = s[name].remote.obeyed
        rates = [each for each in obeyed if isinstance(each, frames.Rates)]
        assert rates
        # After the amendment, three inner steps advance the schedule as far as two did before it.
        assert set(rates) == {frames.Rates(0.05, 2 * step, 2 * step, 3, 2)}
    trained = [each for each in s["dan"].remote.obeyed if isinstance(each, frames.Train)]
    assert trained[-1].first_inner_step == 2 * step + 3 * (trained[-1].step - step)
