"""Ranks of one peer on two hosts, started by torchrun. Where this machine allows it, the hosts are
network namespaces joined by a virtual cable. Otherwise both are at 127.0.0.1, and the test cannot
show that packets take the right route."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pytest

import p2ptrain
from p2ptrain.ipc.frames import Evaluate, Evaluated, FragmentReady, Hello, Load, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.testing.network_namespaces import NodeNetwork, opened
from p2ptrain.trainer.host.supervisor import LocalTrainer, Supervisor
from tests.trainer.receiving import receive

if TYPE_CHECKING:
    from tests.trainer.conftest import Vectors

NODE = Path(__file__).with_name("node_alone.py")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(p2ptrain.__file__).parents[1]),
    "PYTHONUNBUFFERED": "1",
}


class Conversation:
    """The connection to the node, in lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def order(self, kind: str, **fields: object) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"kind": kind, **fields}) + "\n")
        stdin.flush()

    def hear(self, *kinds: str) -> dict[str, object]:
        """Return the next message of one of these kinds."""
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            told: dict[str, object] = json.loads(line)
            if told["kind"] in kinds:
                return told
            assert told["kind"] != "error", told
        raise AssertionError(f"the node ended before it sent {kinds}")


@contextmanager
def process(place: NodeNetwork, host: int, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        place.inside(host, [sys.executable, *words]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            # torchrun stops its ranks, which are in separate sessions.
            os.killpg(started.pid, signal.SIGTERM)
        started.communicate()


def torchrun(place: NodeNetwork, host: int, folder: Path) -> list[str]:
    """Return the command that a user runs on each host."""
    address, call, meet = place.address(0)
    return [
        *("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--node-rank", str(host), "--master-addr", address, "--master-port", str(meet)),
        *("--max-restarts", "3", "-m", "p2ptrain.trainer"),
        *("--call", f"{address}:{call}", "--secret", str(folder / "ranks.secret")),
    ]


def with_two_local_ranks(
    config: TrainerConfig, vectors: Vectors, paths: tuple[str, ...]
) -> tuple[Evaluated, FragmentReady, np.ndarray]:
    trainer = Supervisor(config, vectors.theta_fd, vectors.local_fd, ranks=2).start()
    vectors.local[:] = np.nan
    try:
        wait_for(trainer, Hello)
        for order in (Load(0), Evaluate(1, paths), Train(0, paths, 0)):
            trainer.send(order)
        evaluated, ready = wait_for(trainer, Evaluated), wait_for(trainer, FragmentReady)
        assert isinstance(evaluated, Evaluated)
        assert isinstance(ready, FragmentReady)
        return evaluated, ready, vectors.local.copy()
    finally:
        trainer.stop(120.0)


def wait_for(trainer: LocalTrainer, kind: type) -> object:
    while True:
        frame = receive(trainer, timeout_s=0.5)
        if isinstance(frame, kind):
            return frame


def test_two_hosts_match_two_local_ranks_and_survive_a_dead_rank(
    on_cpu: TrainerConfig,
    vectors: Vectors,
    block_paths: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = block_paths[:4]
    (tmp_path / "config.json").write_text(on_cpu.to_json())
    vectors.theta.tofile(tmp_path / "theta")

    with opened(2) as place, ExitStack() as stack:
        address, port, _ = place.address(0)
        words = [str(NODE), str(tmp_path), address, str(port), "2"]
        node = Conversation(stack.enter_context(process(place, 0, words)))
        node.hear("listens")
        hosts = [
            stack.enter_context(process(place, each, torchrun(place, each, tmp_path)))
            for each in range(2)
        ]
        evaluated, ready, local = with_two_local_ranks(on_cpu, vectors, paths)

        def train() -> list[Any]:
            node.order("hello")
            node.order("train", paths=paths)
            return [node.hear("heard")["frame"] for _ in range(3)]

        def expected() -> list[object]:
            return [evaluated.loss, ready.loss, ready.tokens]

        hello, first, second = train()
        assert (hello["ranks"], hello["layout_digest"]) == (2, vectors.layout.digest)
        assert [first["loss"], second["loss"], second["tokens"]] == expected()
        made = np.fromfile(tmp_path / "local", np.float32)
        np.testing.assert_array_equal(made.view(np.uint32), local.view(np.uint32))

        node.order("wait")
        subprocess.run(["pkill", "-KILL", "-P", str(hosts[1].pid)], check=True)
        assert node.hear("error", "stopped")["code"] == "TRAINER-RANKS"
        (tmp_path / "local").unlink()
        _, first, second = train()
        assert [first["loss"], second["loss"], second["tokens"]] == expected()
        made = np.fromfile(tmp_path / "local", np.float32)
        np.testing.assert_array_equal(made.view(np.uint32), local.view(np.uint32))

        node.order("stop")
        assert node.hear("stopped")["status"] == 0
        assert [each.wait(timeout=200) for each in hosts] == [0, 0]

    if not place.can_cut:
        with capsys.disabled():  # pytest drops the output of a passing test.
            text = "this test used only loopback, because network namespaces need root\n"
            sys.stderr.write(text)
