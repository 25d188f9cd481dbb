"""Measure how fast a newcomer behind a NAT fetches the run's weights from holders behind NATs.

    python -m tests.wan.harness.joining                                  50 MB, lines of 20 Mbit/s
    python -m tests.wan.harness.joining --member --megabytes 10

Needs root. Node 0 can be dialled and knows all others, but sends bulk data at 1 kB/s, so it is no
source of weights. Three seeds behind cone NATs hold them. The newcomer, which trains, is behind a
cone NAT too. With `--member`, it is one of the founders that has lost its store, so it may punch
holes at once. The weights are random, and the run is at its first outer step. The time is that from
the first request for the snapshot until the newcomer has it. Its rate is compared with that of its
line; the share is 0 if the newcomer does not get the snapshot. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from p2ptrain.archive.home import Home
from p2ptrain.identity import load_or_create
from p2ptrain.observe.states import FetchingSnapshot, Serving
from p2ptrain.run import Allowlist, Run, SignedAllowlist, save_allowlist, save_run
from p2ptrain.state import snapshot_meta, write_state
from p2ptrain.store import Store
from p2ptrain.testing.published import MODEL, manifest_of, policy, share_content
from p2ptrain.trainer.formats.shapes import layout_of, parameter_count
from tests.wan.harness import emulator
from tests.wan.harness.reach_node import ReachNode, end
from tests.wan.harness.voter import CONTROL_PORT
from tests.wan.harness.votes import host_of

HOLDERS = 3
NEWCOMER = HOLDERS + 1
MBIT = 20
NETWORK = ("-n", str(NEWCOMER + 1), "-d", "20", "-j", "2", "-r", str(MBIT))

OPEN_NODES_LIMIT = 1000
"""Bytes per second of bulk data from node 0, the lowest limit that a node has."""

CHUNK_BYTES = 1 << 18
LAYER = replace(MODEL, width=512, ffn=1024)
"""A layer of this model has 2.6 M parameters, so 10.5 MB."""

START_S, LINE_TIMES = 60.0, 4.0
"""Timeout in seconds for the start of a node, and how many times as long as on a full line the
transfer may take."""


def publish(homes: list[Home], megabytes: int, founders: int) -> None:
    """Publish a run with weights of about this size, which all homes but the last one hold."""
    peers = [load_or_create(home.identity).peer for home in homes]
    organiser = load_or_create(homes[0].identity)
    layers = max(1, round(megabytes * 1e6 / 4 / parameter_count(LAYER)))
    model = replace(LAYER, layers=layers)
    layout = layout_of(model)
    share_content(homes[0])
    theta = np.random.default_rng(1).standard_normal(layout.numel, dtype=np.float32)
    with Store(homes[0].store, chunk_bytes=CHUNK_BYTES) as store:
        meta = snapshot_meta(None, 0, layout.digest)
        genesis = write_state(store, theta, np.zeros_like(theta), meta)
    usual = manifest_of(
        organiser.peer,
        founders=peers[:founders],
        steps=100_000,
        rules=policy(participants_min=1, chunk_bytes=CHUNK_BYTES),
    )
    manifest = replace(usual, model=model, genesis=genesis, layout=layout.digest)
    run = Run.publish(organiser, manifest)
    listed = SignedAllowlist.publish(organiser, Allowlist.of(run.id, 1, peers))
    for home in homes:
        save_run(home.manifest, run)
        save_allowlist(home.allowlist, listed)
        if home not in (homes[0], homes[-1]):
            shutil.copytree(homes[0].store, home.store)


def run_nodes(folder: Path, megabytes: int, *, member: bool) -> dict[str, object]:
    """Run the nodes inside the emulated network. Raises TimeoutError."""
    homes = [Home(folder / f"node{number}") for number in range(NEWCOMER + 1)]
    publish(homes, megabytes, NEWCOMER + member)
    first = load_or_create(homes[0].identity).peer
    address = f"/ip4/{host_of(0)}/tcp/{CONTROL_PORT}/p2p/{first}"
    nodes = [ReachNode(home.root.name, home.root, at) for at, home in enumerate(homes)]
    try:
        nodes[0].launch(host_of(0), "--seed", "--limit-up", str(OPEN_NODES_LIMIT))
        wait_until_ready(nodes[0])  # A seed whose first call is refused tries again after 10 s.
        for node in nodes[1:NEWCOMER]:
            node.launch(host_of(node.number), "--seed", "--bootstrap", address)
        for node in nodes[1:NEWCOMER]:
            wait_until_ready(node)
        newcomer = nodes[NEWCOMER]
        newcomer.launch(host_of(NEWCOMER), "--bootstrap", address)
        limit_s = START_S + LINE_TIMES * megabytes * 8 / MBIT
        newcomer.wait_for(lambda: newcomer.find("snapshot-fetched") is not None, limit_s)
        return summary(newcomer, first)
    finally:
        for node in nodes:
            end(node)


def wait_until_ready(node: ReachNode) -> None:
    """Wait until the node serves the run. Raises TimeoutError."""
    if not node.wait_for(lambda: is_ready(node), START_S):
        raise TimeoutError(f"{node.name} did not start:\n{node.output()[-2000:]}")


def is_ready(node: ReachNode) -> bool:
    """Return whether the node serves the run."""
    return node.find("state", state=Serving.name) is not None


def summary(newcomer: ReachNode, first: str) -> dict[str, object]:
    fetched = newcomer.find("snapshot-fetched")
    began = newcomer.find("state", state=FetchingSnapshot.name)
    delays = [it["reason"] for it in newcomer.events if it["event"] == "fetch-delayed"]
    punched = [it["monotonic_s"] for it in newcomer.events if it["event"] == "punched"]
    either_way = {"punched": len(punched), "delays": delays[:5]}
    if fetched is None:
        waited_s = time.monotonic() - newcomer.launched_s
        return {"share_of_line": 0.0, "waited_s": round(waited_s, 1), **either_way}
    ended_s, by_peer = fetched["monotonic_s"], fetched["bytes_by_peer"]
    began_s = ended_s - fetched["seconds"]
    if began is not None:
        began_s = min(began_s, began["monotonic_s"])
    # Connections from before that time may be used again.
    connected_s = [round(at_s - began_s, 2) for at_s in punched if at_s < ended_s]
    count_bytes, seconds = sum(by_peer.values()), ended_s - began_s
    rate = count_bytes * 8 / seconds / 1e6
    return {
        "bytes": count_bytes,
        "seconds": round(seconds, 2),
        "rate_mbit": round(rate, 2),
        "share_of_line": round(rate / MBIT, 3),
        "after_start_s": round(ended_s - newcomer.launched_s, 1),
        "connected_s": connected_s,
        "sources": sum(peer != first for peer in by_peer),
        "bytes_of_the_open_node": by_peer.get(first, 0),
        **either_way,
    }


def measured(megabytes: int, *, member: bool) -> dict[str, object]:
    """Run this program inside the emulator. Raises CalledProcessError if it fails."""
    nats = [word for at in range(1, NEWCOMER + 1) for word in ("-N", f"cone:{at}")]
    limit_s = (NEWCOMER + 4) * START_S + LINE_TIMES * megabytes * 8 / MBIT
    arguments = ["--megabytes", str(megabytes), *["--member"] * member]
    found = emulator.result((*NETWORK, *nats), "joining", arguments, limit_s, public=True)
    return {"member": member, "megabytes": megabytes, "line_mbit": MBIT} | found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.joining")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--member", action="store_true", help="the newcomer is a member already")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        with tempfile.TemporaryDirectory(prefix="p2ptrain-joining-") as folder:
            found = run_nodes(Path(folder), given.megabytes, member=given.member)
            sys.stdout.write(json.dumps(found) + "\n")
        return 0
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    sys.stdout.write(json.dumps(measured(given.megabytes, member=given.member)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
