"""Measure what it saves two peers far apart to keep the connection of a reduce for the next one.

    python -m tests.wan.harness.second_reduce                   1 M elements, 100 ms there and back
    python -m tests.wan.harness.second_reduce --tries 20 --pause 10

Needs root. Ann and Bob average over the real data plane (int8, TLS): first on a new connection,
then twice on the same one, after a short pause and after `--pause` seconds. Prints one line of
JSON. The times are those of Ann, who opens the connection, from her first packet to her result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from p2ptrain.dataplane import (
    Credentials,
    Endpoint,
    Listener,
    PeerSocket,
    RingInbox,
    RingKey,
    dial,
    probe_congestion,
)
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId
from p2ptrain.kernels import codec as codec_of
from p2ptrain.node.reduce import second_hello
from p2ptrain.ring import Reduce, ReduceRequest, streams_for
from p2ptrain.ring.source import Difference
from tests.wan.harness import emulator
from tests.wan.harness.relay_end import credentials_of, write_credentials

NAMES = ("ann", "bob")
HOST, PORT = "10.77.0.1", 4201
RUN = RunId("a" * 64)
WAIT_S = 120.0
SHORT_PAUSE_S = 0.2
REQUIRED = 0.5


def request_of(me: str, peers: tuple[PeerId, ...], step: int, numel: int) -> ReduceRequest:
    codec = codec_of("int8", 256)
    return ReduceRequest(
        run=RUN,
        step=step,
        attempt=0,
        peers=peers,
        me=NAMES.index(me),
        weights=(1, 1),
        numel=numel,
        codec=codec,
        streams=streams_for("ring", 2, codec.encoded_bytes(numel)),
    )


def average(request: ReduceRequest, connections: list[PeerSocket]) -> None:
    theta, local = (np.full(request.numel, value, np.float32) for value in (0.5, 0.25))
    payload = bytearray(request.codec.encoded_bytes(request.numel))
    (other,) = request.neighbours
    Reduce(request, {other: connections}, Difference(theta, local), payload).run()


def keys(request: ReduceRequest) -> list[RingKey]:
    return [
        RingKey(RUN, request.step, request.attempt, stream, request.peers[0])
        for stream in range(request.streams)
    ]


def ann(mine: Credentials, bob: Credentials, given: argparse.Namespace) -> list[list[float]]:
    """Return the three times of each try, in seconds."""
    peers, found = (mine.peer, bob.peer), list[list[float]]()
    endpoint = Endpoint(bob.peer, HOST, PORT, bob.certificate_der)
    for number in range(given.tries):
        connections: list[PeerSocket] = []
        times: list[float] = []
        for turn, pause_s in enumerate((SHORT_PAUSE_S, SHORT_PAUSE_S, given.pause)):
            request = request_of("ann", peers, 3 * number + turn, given.numel)
            time.sleep(pause_s)
            began_s = time.monotonic()
            if turn == 0:
                connections = [
                    dial(mine, endpoint, key.to_hello(), deadline_s=WAIT_S) for key in keys(request)
                ]
            else:
                for each, key in zip(connections, keys(request), strict=True):
                    second_hello.offer(each, key, WAIT_S)
            average(request, connections)
            times.append(time.monotonic() - began_s)
        found.append(times)
        for each in connections:
            each.close()
    return found


def bob(mine: Credentials, ann: Credentials, given: argparse.Namespace) -> None:
    peers, inbox = (ann.peer, mine.peer), RingInbox()
    with Listener(mine, HOST, PORT, allowed=lambda peer: True) as listener:
        listener.trust_certificate(ann.certificate_der)
        listener.handle("ring", inbox.handle, inbox.refusal)
        sys.stdout.write("\n")
        sys.stdout.flush()
        for number in range(given.tries):
            connections: list[PeerSocket] = []
            for turn in range(3):
                request = request_of("bob", peers, 3 * number + turn, given.numel)
                if turn == 0:
                    connections = [
                        inbox.wait_for_socket(key, deadline_s=WAIT_S) for key in keys(request)
                    ]
                else:
                    for each in connections:
                        each.set_deadline(WAIT_S)
                        second_hello.accept(each, lambda key: "", WAIT_S, begun_s=WAIT_S)
                average(request, connections)
            for each in connections:
                each.close()


def inside(given: argparse.Namespace) -> dict[str, object]:
    """Run both ends in the emulated network, and return the medians."""
    options = [str(it) for it in ("--tries", given.tries, "--numel", given.numel)]
    options += ["--pause", str(given.pause)]
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(NAMES):
            made = Credentials.create(Identity.from_seed(bytes([number + 1]) * 32))
            write_credentials(Path(folder), name, made)
        module = [sys.executable, "-m", "tests.wan.harness.second_reduce", *options]
        serving = subprocess.Popen(
            emulator.inside(0, [*module, "--as", "bob", "--folder", folder]), stdout=subprocess.PIPE
        )
        assert serving.stdout is not None
        with serving, serving.stdout:
            serving.stdout.readline()  # Bob listens now.
            words = emulator.inside(1, [*module, "--as", "ann", "--folder", folder])
            done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    first, second, later = (median(each) for each in zip(*found, strict=True))
    return {
        "first_s": round(first, 3),
        "second_s": round(second, 3),
        "after_pause_s": round(later, 3),
        "second_by_first": round(second / first, 3),
        "after_pause_by_first": round(later / first, 3),
        "tries": len(found),
        "pause_s": given.pause,
        "load": os.getloadavg(),
        "congestion": probe_congestion().words,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.harness.second_reduce")
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--numel", type=int, default=1_000_000)
    parser.add_argument("--pause", type=float, default=5.0)
    parser.add_argument("--delay", default="50", help="milliseconds in one direction")
    parser.add_argument("--rate", default="100", help="Mbit/s of each line")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--as", dest="name", default="", choices=("", *NAMES))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.name:
        ends = [credentials_of(given.folder, name) for name in NAMES]
        if given.name == "ann":
            sys.stdout.write(json.dumps(ann(ends[0], ends[1], given)) + "\n")
        else:
            bob(ends[1], ends[0], given)
        return 0
    if given.inside:
        sys.stdout.write(json.dumps(inside(given)) + "\n")
        return 0
    if missing := emulator.missing():
        sys.stderr.write(f"the emulator cannot run here: {missing}\n")
        return 4
    options = ("-n", "2", "-d", given.delay, "-r", given.rate)
    arguments = ["--tries", str(given.tries), "--numel", str(given.numel)]
    arguments += ["--pause", str(given.pause)]
    found = emulator.result(options, "second_reduce", arguments, WAIT_S + given.tries * 60)
    ratio = found["second_by_first"]
    assert isinstance(ratio, float)
    sys.stdout.write(json.dumps(found | {"required": REQUIRED, "ok": ratio <= REQUIRED}) + "\n")
    return 0 if ratio <= REQUIRED else 1


if __name__ == "__main__":
    sys.exit(main())
