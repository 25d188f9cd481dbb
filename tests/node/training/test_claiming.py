"""A node stores its contribution and its claim before it shows them, and keeps both over a
restart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2ptrain.archive.own_claims import CLAIMS_KEPT, KEPT_STEPS, RECORDS_MAX, OwnClaims
from p2ptrain.errors import StoreError, TrainerDiverged
from p2ptrain.ids import Digest
from p2ptrain.ledger.messages.peer_reports import Ready
from p2ptrain.node.state.trainer import ClaimedWork
from p2ptrain.node.training import claiming
from p2ptrain.store import digest_of
from p2ptrain.sync import SyncSpec
from p2ptrain.sync.trainer_orders import LocalWork
from tests.node.rig import ANN, Rig, rig
from tests.node.swarm import CLAIMS

TOKENS = 32


async def claimed(r: Rig, scale: float = 0.01, *, is_exact: bool = True) -> ClaimedWork:
    """Claim random work with elements of about `scale` for outer step 0, and offer it."""
    context = r.context
    assert context.trainer.arena is not None
    noise = np.random.default_rng(1).standard_normal(context.layout.numel, np.float32)
    context.trainer.arena.local[:] = context.trainer.arena.theta - noise * np.float32(scale)
    work = LocalWork(0, context.ledger.snapshot.leases[context.me], TOKENS)
    made = await claiming.claim_work(context, context.outer_step(0), work, is_exact=is_exact)
    context.trainer.work, context.trainer.claimed = work, made
    return made


async def test_restarted_node_offers_its_claimed_work_again(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        before = await claimed(r)
        told = r.context.trainer.ready
        run = r.run
    async with rig(tmp_path, run=run) as r:
        after = r.context.trainer.claimed
        assert after is not None
        assert (after.made, after.is_restored) == (before.made, True)
        assert after.contribution.payload == before.contribution.payload
        assert r.context.trainer.ready == told
        assert r.context.trainer.report_of(r.context.me) == Ready.of(r.context.me, before.made.said)
        assert [each["claim"] for each in r.said("claim-kept")] == [before.made.claim.digest]


async def test_node_that_lost_its_contribution_claims_with_a_new_number(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        first = (await claimed(r)).made.claim
        chunk = r.context.store.manifest(first.contribution).chunks[0]
        r.context.store.chunk_path(chunk).unlink()
        run = r.run
    async with rig(tmp_path, run=run) as r:
        assert (r.context.trainer.work, r.context.trainer.claimed) == (None, None)
        assert len(r.said("claim-lost")) == 1
        second = (await claimed(r)).made.claim
        assert (first.serial, second.serial) == (1, 2)
        assert second.contribution == first.contribution


async def test_old_claim_is_not_offered_in_a_later_outer_step(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        made = await claimed(r)
        r.context.trainer.discard_work()
        r.set_chain(step=1)
        claiming.take_up_again(r.context)
        assert r.context.trainer.claimed is None
        claims = r.context.trainer.claims
        assert claims is not None
        kept = [claims.contributions(step) for step in (KEPT_STEPS, KEPT_STEPS + 1)]
        assert kept == [(made.made.claim.contribution,), ()]


async def test_base_is_stated_only_if_work_began_at_a_certified_theta(tmp_path: Path) -> None:
    async with rig(tmp_path / "plain", trust=CLAIMS) as r:
        bases = [(await claimed(r, is_exact=each)).made.claim.base for each in (True, False)]
        assert bases == [Digest(r.run.id), None]
    streaming = SyncSpec(fragments=2, overlap_steps=1)
    async with rig(tmp_path / "two", trust=CLAIMS, sync=streaming, inner_steps=4) as r:
        assert (await claimed(r)).made.claim.base is None


async def test_work_is_claimed_anew_on_a_branch(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        first = (await claimed(r)).made.claim
        await claiming.follow_line(r.context)
        assert r.context.trainer.claimed is not None
        assert r.context.trainer.claimed.made.claim == first
        line = digest_of(b"branch")
        r.set_chain(line=line)
        await claiming.follow_line(r.context)
        second = r.context.trainer.claimed.made.claim
        assert (second.line, second.serial) == (line, 2)
        assert second.contribution == first.contribution


async def test_work_beyond_the_bound_is_not_claimed(tmp_path: Path) -> None:
    async with rig(tmp_path, trust=CLAIMS) as r:
        with pytest.raises(TrainerDiverged, match="once encoded"):
            await claimed(r, scale=r.run.manifest.influence_max)
        assert r.context.trainer.claims is not None
        assert r.context.trainer.claims.newest is None


async def test_node_of_a_run_without_claims_makes_none(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert r.context.trainer.claims is None
        assert not r.context.home.claims.exists()


def test_numbers_continue_after_the_log_was_shortened(tmp_path: Path) -> None:
    path, made = tmp_path / "claims.log", RECORDS_MAX + 2
    names = [digest_of(str(number).encode()) for number in range(made)]
    claims, line = OwnClaims(path, ANN), digest_of(b"line")
    for step, name in enumerate(names):
        claims.make(line, step, None, TOKENS, (2 * step, 2 * step + 1), name)
    claims.close()
    again = OwnClaims(path, ANN)
    assert again.newest == claims.newest
    assert again.contributions(0) == tuple(names[-CLAIMS_KEPT:])
    assert again.make(line, made, None, TOKENS, (1,), names[0]).claim.serial == made + 1
    assert again.make(line, made, None, TOKENS, (1,), names[0], serial_min=900).claim.serial == 900
    again.close()


def test_damaged_claims_stop_the_node(tmp_path: Path) -> None:
    path = tmp_path / "claims.log"
    claims = OwnClaims(path, ANN)
    claims.make(Digest("a" * 64), 0, None, TOKENS, (0,), digest_of(b"work"))
    claims.close()
    path.write_bytes(b"not a log")
    with pytest.raises(StoreError) as caught:
        OwnClaims(path, ANN)
    assert caught.value.code == "CLAIMS-BROKEN"
