"""`p2ptrain watch --weights` is run by somebody who is not admitted, against real nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import NotAuthorised
from p2ptrain.export.source import ThetaOfSnapshot
from p2ptrain.node.watching.take_weights import taken_weights
from p2ptrain.run.outside_facts import Public
from p2ptrain.store import StoreReader
from p2ptrain.testing.published import policy
from tests.node.swarm import Swarm, swarm

ALONE = policy(participants_min=1)


async def taken(s: Swarm, folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command of a stranger, who has only the address of the seed."""
    (address, *_) = s.seed.context.network.addresses()
    command = [sys.executable, "-m", "p2ptrain.cli", "watch", "--bootstrap", address]
    work = partial(trio.run_process, check=False, capture_stdout=True, capture_stderr=True)
    return await work([*command, "--weights", str(folder), *words])


async def test_stranger_takes_public_weights_and_verifies_them(tmp_path: Path) -> None:
    public = Public(telemetry=True, weights=True)
    folder = tmp_path / "weights"
    async with swarm(tmp_path, nodes=("ann",), steps=90, rules=ALONE, public=public) as s:
        await s.until(lambda: s.seed.context.ledger.snapshot.snapshot)
        await s.stand_still()
        done = await taken(s, folder, "--json")
        chain = s.seed.context.ledger.snapshot
        numel = s.seed.context.layout.numel
    assert done.returncode == 0, done.stderr.decode()
    told, named = json.loads(done.stdout), chain.snapshot
    assert named is not None
    assert (told["step"], told["snapshot"]) == (named.step, named.digest)
    assert told["standing"] == "certified"
    assert set(told["signed_by"]) <= {s.seed.peer, s["ann"].peer}
    assert (told["ledger_height"], told["ledger_head"]) == (chain.height, chain.head)
    theta = ThetaOfSnapshot(StoreReader(s.seed.home.store), named.digest, numel)
    for _ in theta.pieces(numel):
        pass
    assert told["theta"] == theta.digest
    files = {"model.safetensors", "tokenizer.json", "README.md", "p2ptrain.certificate"}
    assert files <= {*told["files"]}
    assert json.loads((folder / "p2ptrain.json").read_text())["snapshot"] == named.digest
    assert [path.name for path in tmp_path.glob("weights*")] == ["weights"], "no chunks are left"


async def test_stranger_is_told_that_the_weights_are_not_public(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    async with swarm(tmp_path, nodes=(), public=Public(telemetry=True)) as s:
        addresses = tuple(s.seed.context.network.addresses())
        config = NodeConfig(tmp_path / "none", bootstrap=addresses, observes=True)
        with pytest.raises(NotAuthorised) as caught:
            await taken_weights(config, folder, print)
    assert (caught.value.code, caught.value.exit_code) == ("WEIGHTS-PRIVATE", 6)
    assert caught.value.do.startswith("ask the organiser to admit you as a reader")
    assert not folder.exists()
