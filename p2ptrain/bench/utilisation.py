"""`p2ptrain bench utilisation`: the share of wall-clock time that nodes spend in inner steps.

The nodes and trainers are real, each on a given host: 127.0.0.1, or network namespaces behind a
slow connection. The same model is trained first with plain DiLoCo and int8, and then with Streaming
DiLoCo and int4, whose fragments are averaged during training.

The time of an inner step is what its trainer reports, without the wait for the data block. The rest
of the time goes to waiting for others, agreeing, averaging and applying. If there are more trainers
than cores, the trainers slow each other's inner steps in both modes. An exchange during training
then also competes with the trainers for the processor, which makes inner steps longer. The share of
time does not show that effect, but the measured tokens/s do.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from p2ptrain.bench.lines import FigureLine, machine
from p2ptrain.bench.processes import Host, ProcessFailed
from p2ptrain.demo.show import Show
from p2ptrain.demo.story import DemoFailed, Story
from p2ptrain.testing.network_namespaces import ports
from p2ptrain.testing.node_process import CommandFailed, run_command

START_S = 240.0
"""Seconds allowed for the start of the first node. The first outer step gets as much extra time, in
which all trainers load torch at once."""
STEP_S_MAX = 400.0
TEXT_BYTES_PER_TOKEN = 4.0
"""Bytes of text per token with a vocabulary of 1,024, rounded up. So the text is long enough for
the whole run, and no block has to be trained on twice."""
WARM_UP_STEPS = 2
"""How many times the whole model is averaged before the measurement begins. During this time, nodes
join and measure the network paths."""


@dataclass(frozen=True, slots=True)
class UtilisationSetting:
    """The measurement. `steps` is H. The whole model is averaged `measured` times during the
    measurement."""

    layers: int
    width: int
    sequence: int
    batch: int
    steps: int
    measured: int
    up: str = ""
    """Upload limit of each node; if empty, the network is the only limit."""

    @property
    def block_tokens(self) -> int:
        return self.batch * self.sequence

    def __post_init__(self) -> None:
        if self.width % 64:
            raise ValueError(f"the width {self.width} is not a multiple of 64")


@dataclass(frozen=True, slots=True)
class SyncMode:
    """The settings in which the compared runs differ: `[sync]`, `[codec]` and `outer.lr`."""

    fragments: int = 1
    overlap_steps: int = 0
    mixing: float = 0.0
    codec: str = "int8"
    outer_lr: float = 0.7

    def __str__(self) -> str:
        if self.fragments == 1:
            return f"plain {self.codec}"
        return (
            f"streaming {self.codec}, P = {self.fragments}, τ = {self.overlap_steps}, "
            f"α = {self.mixing:g}"
        )


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Seconds that one node spent during `outer_steps` outer steps, in total and in inner steps."""

    wall_s: float
    inner_s: float
    inner_steps: int
    outer_steps: int
    told: float
    """Mean of the utilisation that the node itself reported."""


def run_file(setting: UtilisationSetting, mode: SyncMode, nodes: int) -> str:
    """Return the run file for this mode."""
    heads, wholes = setting.width // 64, WARM_UP_STEPS + setting.measured + 2
    outer, tokens = wholes * mode.fragments, wholes * nodes * setting.steps * setting.block_tokens
    return f"""
[run]
name = "utilisation"
[model]
vocab = 1024
layers = {setting.layers}
width = {setting.width}
heads = {heads}
kv_heads = {heads}
ffn = {setting.width * 8 // 3 // 32 * 32}
sequence = {setting.sequence}
tied = true
[data]
source = "stdlib"
limit_mb = {1 + tokens * TEXT_BYTES_PER_TOKEN / 1e6:.1f}
validation_blocks = 4
[inner]
steps = {setting.steps}
batch_sequences = {setting.batch}
lr = 1e-3
warmup_steps = 20
schedule = "constant"
[outer]
steps = {outer}
lr = {mode.outer_lr}
momentum = 0.9
[sync]
fragments = {mode.fragments}
overlap_steps = {mode.overlap_steps}
mixing = {mode.mixing}
[codec]
name = "{mode.codec}"
[policy]
participants_min = {nodes}
grace_s = 60.0
round_timeout_s = 3.0
snapshot_every = {outer}
evaluate_every = {outer}
"""


class Swarm(Story):
    """A training node on each host; the first node is the organiser's."""

    def __init__(
        self, folder: Path, hosts: Sequence[Host], setting: UtilisationSetting, mode: SyncMode
    ) -> None:
        folder.mkdir()
        config = folder / "run.toml"
        config.write_text(run_file(setting, mode, len(hosts)))
        super().__init__(folder, config, Show(Console(stderr=True, highlight=False)))
        self.cast = {f"n{number}": self._cast(f"n{number}") for number in range(len(hosts))}
        self._options: dict[str, tuple[str, ...]] = {}
        for number, (node, host) in enumerate(zip(self.cast.values(), hosts, strict=True)):
            node.wrapped = host.command
            control, data = ports(number)
            family = "ip6" if ":" in host.address else "ip4"
            self._options[node.name] = (
                *("--listen", f"/{family}/{host.address}/tcp/{control}"),
                *("--data-listen", f"{host.address}:{data}", "--threads", "1"),
                "--no-port-mapping",
                *(("--limit-up", setting.up) if setting.up else ()),
            )

    def begin(self) -> None:
        """Publish the run and start all nodes."""
        for name, node in self.cast.items():
            told = json.loads(run_command("id", "--home", str(node.home), "--json"))
            self.peers[name] = told["peer"]
        first, *others = self.cast.values()
        listed = [part for node in others for part in ("--allow", self.peers[node.name])]
        run_command(
            *("run", "publish", str(self.config), "--home", str(first.home)),
            *("--founder", self.peers[first.name], *listed, "--json"),
        )
        for node in others:
            # Copy the snapshot: fetching it would take long, and joining is not measured.
            shutil.copytree(first.home / "store" / "objects", node.home / "store" / "objects")
        first.start(*self._options[first.name])
        way_in = self.wait_for("an address", lambda: _address(first.status()), deadline_s=START_S)
        for node in others:
            node.start(*self._options[node.name], "--bootstrap", way_in)

    def measure(self, mode: SyncMode, setting: UtilisationSetting) -> list[NodeTime]:
        """Wait for the measured outer steps, and return the seconds that each node spent."""
        start = WARM_UP_STEPS * mode.fragments
        end = start + setting.measured * mode.fragments
        for step in range(end + 1):
            limit_s = (START_S if step == 0 else 0.0) + STEP_S_MAX
            seen = partial(self._all_committed, step)
            self.wait_for(f"outer step {step}", seen, deadline_s=limit_s)
        return [spent(node.events, setting.block_tokens, start, end) for node in self.cast.values()]

    def _all_committed(self, step: int) -> bool:
        return all(node.find("committed", step=step) for node in self.cast.values())


def spent(events: Sequence[dict[str, Any]], block_tokens: int, start: int, end: int) -> NodeTime:
    """Return the seconds that a node spent between the commits of outer steps `start` and `end`,
    according to its journal. An inner step has `block_tokens`.

    Raises ProcessFailed if the node did not take part in all of these outer steps.
    """
    commits = {each["step"]: each for each in events if each["event"] == "committed"}
    within = [commits[step] for step in range(start + 1, end + 1)]
    if not all(each["took_part"] and not each["skipped"] for each in within):
        raise ProcessFailed("a node was left out of an outer step, or an outer step was skipped")
    begun_s, ended_s = commits[start]["monotonic_s"], commits[end]["monotonic_s"]
    steps = [
        each
        for each in events
        if each["event"] == "inner-step" and begun_s < each["monotonic_s"] <= ended_s
    ]
    return NodeTime(
        ended_s - begun_s,
        sum(block_tokens / each["tokens_per_s"] - each["data_wait_s"] for each in steps),
        len(steps),
        end - start,
        statistics.mean(each["compute_utilisation"] for each in within),
    )


def measure(
    setting: UtilisationSetting, modes: Sequence[SyncMode], hosts: Sequence[Host]
) -> Iterator[FigureLine]:
    """Measure each mode in turn, each in a separate run. Raises ProcessFailed."""
    load = os.getloadavg()[0]
    plain: SyncMode | None = None
    folder = Path(tempfile.mkdtemp(prefix="p2ptrain-utilisation-"))
    try:
        for number, mode in enumerate(modes):
            swarm = Swarm(folder / str(number), hosts, setting, mode)
            try:
                swarm.begin()
                nodes = swarm.measure(mode, setting)
            except (DemoFailed, CommandFailed) as exc:
                raise ProcessFailed(str(exc)) from exc
            finally:
                for node in swarm.cast.values():
                    node.kill()
            yield from _lines(setting, mode, nodes, plain)
            plain = plain or mode
    finally:
        shutil.rmtree(folder)
    yield from machine(load)


def _lines(
    setting: UtilisationSetting, mode: SyncMode, nodes: Sequence[NodeTime], plain: SyncMode | None
) -> Iterator[FigureLine]:
    name, against = f"{mode}, H = {setting.steps}, {len(nodes)} nodes", str(plain or "")
    shares = [each.inner_s / each.wall_s for each in nodes]
    details = {"nodes": shares, "told": [each.told for each in nodes]}
    outer = statistics.mean(each.wall_s / each.outer_steps for each in nodes)
    inner = statistics.mean(each.inner_s / each.inner_steps for each in nodes)
    tokens = setting.block_tokens * sum(each.inner_steps for each in nodes)
    wall_s = statistics.mean(each.wall_s for each in nodes)
    yield FigureLine(f"compute utilisation, {name}", statistics.mean(shares), "", against, details)
    yield FigureLine(f"compute utilisation of the worst node, {name}", min(shares), "", against)
    yield FigureLine(f"an outer step, {name}", outer, "s", against)
    yield FigureLine(f"an inner step, {name}", inner, "s", against)
    yield FigureLine(f"trained, {name}", tokens / wall_s, "tokens/s", against)


def _address(status: dict[str, Any] | None) -> str:
    return str(status["addresses"][0]) if status and status.get("addresses") else ""
