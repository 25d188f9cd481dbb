"""Runs with claims: each participant's contribution is quantised once and signed, so every node can
check what an average was made of. Nodes are real, trainers are simulated."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from p2ptrain.cli.main import main
from p2ptrain.ids import Digest
from p2ptrain.node.averages import contribution_chunks
from p2ptrain.node.averages.check_task import WARNING
from p2ptrain.node.averages.checking import check_chunk
from p2ptrain.node.state.trainer import ClaimedWork, TrainerState
from p2ptrain.ring import Contribution
from p2ptrain.swarm import PURPOSE
from tests.node.swarm import CLAIMS, SwarmNode, swarm


def good_checks(node: SwarmNode) -> list[dict[str, object]]:
    return node.events("average-checked", good=True)


async def test_every_node_checks_what_an_average_was_made_of(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=3, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(3) and all(map(good_checks, s.up)))
        s.check_chain()
        s.check_equal()
        found = [record for node in s.up for record in node.events("average-checked")]
        assert {record["wrong"] for record in found} == {""}
        # On a busy machine Bob may have been too slow. Then Ann has asked everybody, and stored it.
        if not s["ann"].events("owner-silent"):
            assert not s["ann"].context.store.has_chunk(contribution_of(s["bob"], 2))
        words = ["verify", "--average", "2", "--chunks", "2", "--home", str(s["ann"].home.root)]
        assert await trio.to_thread.run_sync(partial(main, words)) == 0


def contribution_of(node: SwarmNode, step: int) -> Digest:
    """Return the digest of the contribution that this node has claimed for this outer step."""
    (claimed,) = node.events("claimed", step=step)
    claims = node.context.trainer.claims
    assert claims is not None
    claim = claims.named(Digest(str(claimed["claim"])))
    assert claim is not None
    return claim.contribution


def serve_nothing(ended: threading.Event) -> None:
    ended.wait()


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_contribution_of_a_silent_owner_comes_from_another_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_up: bool
) -> None:
    """The owner is up, but sends no chunks. The seed has its contribution."""
    ended = threading.Event()
    if hangs_up:
        ended.set()
    else:
        monkeypatch.setattr(contribution_chunks, "OWNER_S", 0.5)
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=1, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(1) and all(map(good_checks, s.up)))
        ann, bob, seed = (s[name].context for name in ("ann", "bob", "seed"))
        contribution = contribution_of(s["bob"], 0)
        for digest in (contribution, *bob.store.manifest(contribution).chunks):
            seed.store.put_chunk(bob.store.get_chunk(digest))
        ann.blobs.connections.close()
        bob.plane.listener.handle(PURPOSE, lambda connection, hello: serve_nothing(ended))
        try:
            found = await check_chunk(ann, 0)
        finally:
            ended.set()
        assert found.is_good, found
        assert [record["peer"] for record in s["ann"].events("owner-silent")] == [bob.me]


class TwoFaced(TrainerState):
    """The state of a peer that averages the opposite of the contribution that it claims."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ClaimedWork):
            value = replace(value, contribution=opposite(value.contribution))
        super().__setattr__(name, value)


def opposite(claimed: Contribution) -> Contribution:
    values = np.empty(claimed.numel, np.float32)
    claimed.codec.dequantise(claimed.payload, values)
    payload = bytearray(len(claimed.payload))
    claimed.codec.quantise(-values, payload)
    return Contribution(payload, claimed.numel, claimed.codec)


def two_faced(state: TrainerState) -> TrainerState:
    return TwoFaced(**{each.name: getattr(state, each.name) for each in fields(state)})


async def test_peer_that_averages_other_numbers_is_named(tmp_path: Path) -> None:
    """It shows one blob to those that check, and feeds another one to the exchange. All nodes still
    have the same weights, since all of them apply the committed update. Among two participants,
    sketches do not find this lie."""
    async with swarm(tmp_path, nodes=(), later=("ann", "bob"), steps=1, trust=CLAIMS) as s:
        s["bob"].disguise = two_faced
        await s.start("ann", "bob")
        honest = [s.seed, s["ann"]]
        await s.until(lambda: all(WARNING in node.context.alerts for node in honest))
        s.check_equal()
        for node in honest:
            (record,) = node.events("average-checked")
            assert (record["step"], record["good"], record["missing"]) == (0, False, ())
            assert "does not follow from the contributions" in str(record["wrong"])
            found = record["named"]
            assert isinstance(found, list)
            assert [(it["peer"], it["kind"]) for it in found] == [(s["bob"].peer, "lied")]
        words = ["verify", "--average", "0", "--home", str(s["ann"].home.root)]
        assert await trio.to_thread.run_sync(partial(main, words)) != 0


async def test_peer_that_signed_a_wrong_sum_is_accused_in_the_next_attempt(tmp_path: Path) -> None:
    async with swarm(tmp_path, nodes=(), later=("ann", "bob"), steps=4, trust=CLAIMS) as s:
        s["bob"].disguise = two_faced
        await s.start("ann", "bob")
        (record, *_) = await s.until(lambda: s["ann"].events("exchange-failed", heard=False))
        assert record["suspects"] == (s["bob"].peer,)
        assert "signed a wrong sum" in str(record["reason"])
        assert s["bob"].peer not in s["ann"].context.reduce.liars


async def test_restarted_node_keeps_its_claim(tmp_path: Path) -> None:
    """Its work is averaged although no trainer of the new process has done it."""
    async with swarm(tmp_path, nodes=("ann", "bob"), steps=2, stops_at=1, trust=CLAIMS) as s:
        await s.until(lambda: s.at_step(1))
        ann, bob = s["ann"], s["bob"]
        ann.remote.stops_at = None
        (ready,) = await s.until(lambda: ann.events("ready", step=1))
        await s.stop("ann")
        ann.remote.held = True
        await s.start("ann")
        assert [record["claim"] for record in ann.events("claim-kept")] == [ready["claim"]]
        bob.remote.stops_at = None
        await s.until(lambda: s.at_step(2))
        s.check_chain()
        assert 1 in s.credits("ann")
