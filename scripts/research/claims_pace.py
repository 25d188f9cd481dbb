"""Measure what claims cost a swarm: outer steps, times on the critical path, and messages.

A seed and five nodes with stand-in trainers run in one process, with claims and without, in turns.
The times depend on the load of the machine; the number of messages for an outer step does not.

    python -m scripts.research.claims_pace --seconds 40 --turns 2
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from p2ptrain.ids import PeerId
from p2ptrain.net.network import Network
from p2ptrain.run.trust_rules import TrustRules
from tests.node.swarm import Swarm, SwarmNode, swarm

NODES = ("ann", "bob", "cai", "dan", "eve")
STEPS_MAX = 100_000


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the requests and the published messages of all nodes, by protocol or topic."""
    told: Counter[str] = Counter()
    request, publish = Network.request, Network.publish

    async def count_request(
        self: Network, peer: PeerId, protocol: str, payload: bytes, **limits: float
    ) -> bytes:
        told[protocol] += 1
        return await request(self, peer, protocol, payload, **limits)  # type: ignore[arg-type]

    async def count_publish(self: Network, topic: str, payload: bytes) -> None:
        told[topic.rsplit("/", 1)[-1]] += 1
        await publish(self, topic, payload)

    Network.request, Network.publish = count_request, count_publish  # type: ignore[method-assign]
    try:
        yield told
    finally:
        Network.request, Network.publish = request, publish  # type: ignore[method-assign]


async def measure(seconds: float, claims: bool) -> dict[str, object]:
    trust = TrustRules(claims=claims)
    with tempfile.TemporaryDirectory() as folder, counted() as told:
        async with swarm(Path(folder), nodes=NODES, steps=STEPS_MAX, trust=trust) as s:
            everybody = [s[name].peer for name in NODES]
            await s.until(lambda: averages_all(s, len(everybody)))
            first, begun_s, cpu_s = s["ann"].step, trio.current_time(), processor_s()
            told.clear()
            since = time.monotonic()
            await trio.sleep(seconds)
            steps = s["ann"].step - first
            took_s = trio.current_time() - begun_s
            used_s, sent = processor_s() - cpu_s, dict(told)
            found = [times(s[name], since) for name in NODES]
            spread, agreed = reports(s, since)
    one = max(1, steps)
    return {
        "claims": claims,
        "outer_steps": steps,
        "seconds": round(took_s, 1),
        "cpu_s_per_step": round(used_s / one, 3),
        **{name: middle([it for each in found for it in each[name]]) for name in found[0]},
        "first_to_last_ready_s": middle(spread),
        "last_ready_to_roster_s": middle(agreed),
        "messages_per_step": {name: round(many / one, 1) for name, many in sorted(sent.items())},
    }


def averages_all(s: Swarm, peers: int) -> bool:
    """Return whether an exchange with all nodes has been finished."""
    started = s["ann"].events("exchange-started")
    return bool(started and len(started[-1]["peers"]) == peers and s["ann"].step > 1)  # type: ignore[arg-type]


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def times(node: SwarmNode, since: float) -> dict[str, list[float]]:
    """Return the seconds between events of each outer step, from the journal."""
    found: dict[str, list[float]] = {}
    at: dict[tuple[str, object], float] = {}
    with node.home.journal.open() as lines:
        for line in lines:
            record = json.loads(line)
            if record["monotonic_s"] < since:
                continue
            event, step = record["event"], record.get("step")
            at[event, step] = record["monotonic_s"]
            for name, start, end in SPANS:
                if event == end and (start, step) in at:
                    found.setdefault(name, []).append(record["monotonic_s"] - at[start, step])
    return {name: found.get(name, []) for name, _, _ in SPANS}


def reports(s: Swarm, since: float) -> tuple[list[float], list[float]]:
    """Return the seconds between the first and the last Ready of each outer step, and between the
    last Ready and the first start of the exchange."""
    ready: dict[object, list[float]] = {}
    started: dict[object, list[float]] = {}
    for name in NODES:
        with s[name].home.journal.open() as lines:
            for record in map(json.loads, lines):
                found = {"ready": ready, "exchange-started": started}.get(record["event"])
                if found is not None and record["monotonic_s"] >= since:
                    found.setdefault(record["step"], []).append(record["monotonic_s"])
    whole = [step for step in started if len(ready.get(step, ())) == len(NODES)]
    spread = [max(ready[step]) - min(ready[step]) for step in whole]
    return spread, [min(started[step]) - max(ready[step]) for step in whole]


SPANS = (
    ("ready_to_roster_s", "ready", "exchange-started"),
    ("exchange_s", "exchange-started", "exchange-done"),
    ("done_to_judged_s", "exchange-done", "judged"),
    ("done_to_commit_s", "exchange-done", "committed"),
    ("started_to_sketched_s", "exchange-started", "sketched"),
)


def middle(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--only", choices=("with", "without"), default=None)
    given = parser.parse_args()
    kinds = {None: (False, True), "with": (True,), "without": (False,)}[given.only]
    for _ in range(given.turns):
        for claims in kinds:
            found = trio.run(measure, given.seconds, claims)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
