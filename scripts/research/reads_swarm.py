"""A swarm that trains on reads of artificial genomes: `scripts/metagene_mini`.

Reads are drawn from random genomes with repeats and packed with a tokenizer that is trained on
them. The packed reads are published as the run of the recipe, and real nodes train on them. A model
that knows only the frequency of each token has a loss equal to the entropy of order 0. So the loss
must fall clearly below that entropy.

Nodes communicate over the loopback interface. Nodes are not killed here; the demo does that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from p2ptrain.testing.node_process import DemoNode, losses_of, run_command

RECIPE = Path("configs/metagene_mini.toml")
READS, READ_BASES = 60_000, 150
BELOW_NATS = 0.2
"""Required distance below the entropy. It is much larger than the differences between seeds: the
validation loss of this model varies by a few hundredths of a nat."""

LOOK_EVERY_S = 0.5
STOP_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Learnt:
    """The result of the run.

    `losses` are those of θ on held-out reads, in nats per token, by outer step.
    """

    peers: int
    parameters: int
    tokens: int
    entropy_nats: float
    losses: tuple[tuple[int, float], ...]
    seconds: float
    heads_agree: bool

    @property
    def is_good(self) -> bool:
        return self.heads_agree and self.losses[-1][1] <= self.entropy_nats - BELOW_NATS


class SwarmFailed(Exception):
    """The run did not complete. The text names the event that did not happen."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    folder = given.dir or Path(tempfile.mkdtemp(prefix="p2ptrain-reads-"))
    started_s = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started_s:7.1f} s  {text}\n")
        sys.stderr.flush()

    nodes = [_node(folder, name) for name in ("seed", *(f"peer{n}" for n in range(given.peers)))]
    try:
        learnt = _swarm(folder, nodes, given, say)
    finally:
        for node in nodes:
            node.stop()
        for node in nodes:
            node.finish(STOP_S)
    facts = {**asdict(learnt), "is_good": learnt.is_good, "folder": str(folder)}
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0 if learnt.is_good else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/metagene_mini", description=__doc__)
    parser.add_argument("--config", type=Path, default=RECIPE, metavar="TOML")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="folder for the nodes' homes, which are kept"
    )
    parser.add_argument("--peers", type=int, default=2, help="number of peers that train")
    parser.add_argument("--outer-steps", type=int, help="outer steps, instead of the recipe's")
    parser.add_argument("--reads", type=int, default=READS)
    parser.add_argument("--genomes", type=int, default=2)
    parser.add_argument("--genome-bases", type=int, default=20_000)
    parser.add_argument("--deadline-s", type=float, default=7200.0)
    return parser.parse_args(arguments)


def _node(folder: Path, name: str) -> DemoNode:
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    return DemoNode(name, home)


def _swarm(
    folder: Path, nodes: list[DemoNode], given: argparse.Namespace, say: Callable[[str], None]
) -> Learnt:
    """Pack the data, start the nodes, and wait for the end of the run.

    Raises SwarmFailed, CommandFailed.
    """
    started_s = time.monotonic()
    entropy_nats = _packed(folder, given, say)
    peers = nodes[1:]
    outer_steps = _begun(folder, nodes)
    told: set[int] = set()

    def ended() -> bool:
        for node in nodes:
            for event in node.new_events():
                if event["event"] == "evaluated" and event["step"] not in told:
                    told.add(event["step"])
                    nats = f"{event['loss']:.4f} nats, order 0 {entropy_nats:.4f}"
                    say(f"before outer step {event['step']}: {nats}")
        return all(node.find("run-ended") for node in peers) and outer_steps in told

    _wait(ended, nodes, given.deadline_s, "the run's end")
    digests = {(node.status() or {}).get("state_digest") for node in peers}
    facts = json.loads(run_command("run", "check", str(folder / "run.toml"), "--json"))
    return Learnt(
        peers=len(peers),
        parameters=facts["parameters"],
        tokens=sum(e["tokens"] for e in peers[0].events if e["event"] == "committed"),
        entropy_nats=entropy_nats,
        losses=tuple(losses_of(event for node in nodes for event in node.events).items()),
        seconds=time.monotonic() - started_s,
        heads_agree=len(digests) == 1 and None not in digests,
    )


def _begun(folder: Path, nodes: list[DemoNode]) -> int:
    """Publish the run, start all nodes, and return the run's number of outer steps."""
    seed, *peers = nodes
    ids = [json.loads(run_command("id", "--home", str(each.home), "--json")) for each in peers]
    allowed = [part for each in ids for part in ("--allow", each["peer"])]
    path, home = str(folder / "run.toml"), str(seed.home)
    published = run_command("run", "publish", path, "--home", home, *allowed, "--json")
    _start(seed, "--seed")
    address = _wait(lambda: _address(seed), nodes, 60.0, "the seed's address")
    for each in peers:
        _start(each, "--bootstrap", str(address), "--threads", "1")
    return int(json.loads(published)["outer_steps"])


def _packed(folder: Path, given: argparse.Namespace, say: Callable[[str], None]) -> float:
    """Make the reads, their blocks and the run file. Return the entropy of order 0 in nats."""
    recipe = given.config.read_text(encoding="utf-8")
    run_file = folder / "run.toml"
    run_file.write_text(run_text(recipe, "reads.fasta", given.outer_steps), encoding="utf-8")
    run_command(
        *("data", "synthesise", str(folder / "reads.fasta"), "--reads", str(given.reads)),
        *("--genomes", str(given.genomes), "--genome-bases", str(given.genome_bases)),
        *("--read-bases", str(READ_BASES)),
    )
    say(f"{given.reads} reads of {given.genomes} genomes of {given.genome_bases} bases")
    packed = json.loads(
        run_command(
            *("data", "pack", str(folder / "reads.fasta"), "--run", str(run_file)),
            *("--out", str(folder / "packed"), "--json"),
        )
    )
    run_file.write_text(run_text(recipe, "packed", given.outer_steps), encoding="utf-8")
    say(f"{packed['train_blocks']} blocks; order 0 has {packed['entropy_nats']:.4f} nats per token")
    return float(packed["entropy_nats"])


def run_text(recipe: str, source: str, outer_steps: int | None) -> str:
    """Return the recipe with this data source and, unless None, this number of outer steps."""
    text = re.sub(r'(?m)^source = "[^"]*"', f'source = "{source}"', recipe)
    if outer_steps is None:
        return text
    return re.sub(r"(?m)(^\[outer\]\n)steps = \d+", rf"\g<1>steps = {outer_steps}", text)


def _start(node: DemoNode, *arguments: str) -> None:
    node.start("--listen", "/ip4/127.0.0.1/tcp/0", "--data-listen", "127.0.0.1:0", *arguments)


def _address(node: DemoNode) -> str | None:
    status = node.status()
    return str(status["addresses"][0]) if status and status.get("addresses") else None


def _wait(look: Callable[[], T], nodes: list[DemoNode], deadline_s: float, what: str) -> T:
    """Return the first true value of `look`.

    Raises SwarmFailed: `look` does not return one before the deadline, or a node fails.
    """
    ends_s = time.monotonic() + deadline_s
    while not (value := look()):
        for node in nodes:
            if node.returncode not in (None, 0):
                raise SwarmFailed(f"{node.name} ended:\n{node.output()[-2000:]}")
        if time.monotonic() > ends_s:
            raise SwarmFailed(f"after {deadline_s:.0f} s, this has not happened: {what}")
        time.sleep(LOOK_EVERY_S)
    return value


if __name__ == "__main__":
    sys.exit(main())
