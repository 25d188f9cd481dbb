"""A node that waits until all ranks of its trainer have connected. The ranks are threads of this
process and do not train."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2ptrain.errors import (
    ChunkMissing,
    ConfigError,
    NetworkUnreachable,
    TrainerError,
    TrainerOutOfMemory,
    TrainerStalled,
)
from p2ptrain.ipc.admission import Purpose
from p2ptrain.ipc.frames import Hello, Load, Progress, Stop, Train
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.state.layout import Layout
from p2ptrain.trainer.host.micro_batch import OUT_OF_MEMORY_EXIT_CODE
from p2ptrain.trainer.host.rank_server import RankGathering
from p2ptrain.trainer.host.stall_watch import AnswerTimeout, RestartBudget
from p2ptrain.trainer.host.torchrun_trainer import AWAY, ExternalRanks, ExternalTrainers, open_door
from p2ptrain.trainer.rank.node_client import NodeCredentials, NodeLink, join
from tests.trainer.receiving import receive

LAYOUT = Layout.of([("a", (6,)), ("b", (4,))])
SECRET = b"s" * 32
HOST = "127.0.0.1"
LIMIT_S = 100.0
"""Timeout in seconds for steps that take milliseconds on an idle machine."""


@dataclass
class Node:
    trainers: ExternalTrainers
    theta: np.ndarray
    local: np.ndarray
    told: list[tuple[str, dict[str, object]]]
    news: threading.Event
    running: list[ExternalRanks] = field(default_factory=list)
    links: list[NodeLink] = field(default_factory=list)

    def start(self) -> ExternalRanks:
        self.running.append(self.trainers.start())
        return self.running[-1]

    def caller(self, rank: int, ranks: int = 2, secret: bytes = SECRET) -> NodeCredentials:
        return NodeCredentials(HOST, self.trainers.port, secret, rank, ranks)

    def gathered(self) -> list[NodeLink]:
        """Return two ranks that have connected, each in a separate thread."""
        made: dict[int, NodeLink] = {}

        def call(rank: int) -> None:
            made[rank] = join(self.caller(rank), limit_s=LIMIT_S)

        callers = [threading.Thread(target=call, args=(rank,)) for rank in range(2)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        self.links += made.values()
        return [made[0], made[1]]


@pytest.fixture
def node(config: TrainerConfig) -> Iterator[Node]:
    theta = np.arange(LAYOUT.numel, dtype=np.float32)
    local = np.zeros_like(theta)
    told: list[tuple[str, dict[str, object]]] = []
    news = threading.Event()

    def tell(event: str, **fields: Any) -> None:
        told.append((event, fields))
        news.set()

    trainers = ExternalTrainers(
        config,
        theta.view(np.uint8).data,
        local.view(np.uint8).data,
        SECRET,
        HOST,
        0,
        2,
        tell,
        budget=RestartBudget(restarts_max=2),
        return_limit_s=0.0,
    )
    made = Node(trainers, theta, local, told, news)
    yield made
    for each in made.running:
        each.stop(0.0, again=True)
    for link in made.links:
        link.close()


def error_of(running: ExternalRanks) -> TrainerError:
    """Wait for the trainer to end, and return its error."""
    with pytest.raises(TrainerError) as caught:
        while True:
            receive(running, timeout_s=LIMIT_S)
    return caught.value


def test_slices_travel_both_ways_once_all_ranks_are_connected(node: Node) -> None:
    running = node.start()
    assert running.waits_for == f"for 2 of 2 ranks to connect at {HOST}:{node.trainers.port}"
    links = node.gathered()
    assert running.waits_for == ""
    assert [link.config for link in links] == [node.trainers.config] * 2
    assert links[0].generation == links[1].generation

    theta, local = links[1].vectors(LAYOUT)
    links[1].fetch([slice(6, 8), slice(2, 4), slice(4, 5)])
    assert theta.tolist()[:8] == [0, 0, 2, 3, 4, 0, 6, 7]
    node.theta[2] = 9
    links[1].fetch([slice(2, 3)])
    assert theta[2] == 9
    local[3:5] = 5
    links[1].push([slice(3, 5)])
    assert node.local[:8].tolist() == [0, 0, 0, 5, 5, 0, 0, 0]


def test_only_blocks_that_the_node_announced_can_be_read(
    node: Node, config: TrainerConfig, block_paths: tuple[str, ...]
) -> None:
    running = node.start()
    first, second = node.gathered()
    sizes = {"vocab": config.model.vocab, "sequence": config.model.sequence}
    running.send(Train(0, (block_paths[0], "/nowhere"), 0))
    rows = second.read_block(block_paths[0], **sizes)
    assert rows.shape == (config.inner.batch_sequences, config.model.sequence + 1)
    with pytest.raises(ChunkMissing, match="the node cannot read"):
        second.read_block("/nowhere", **sizes)
    with pytest.raises(ConnectionError):
        first.read_block("/etc/hostname", **sizes)
    assert "did not announce" in error_of(running).what


def test_frames_go_through_rank_0_and_stop_ends_all_ranks(node: Node) -> None:
    running = node.start()
    links = node.gathered()
    channel = links[0].channel()
    channel.send(Hello(0, 2, LAYOUT.digest, 10, "cpu", 3))
    assert receive(running, timeout_s=LIMIT_S) == Hello(0, 2, LAYOUT.digest, 10, "cpu", 3)
    running.send(Load(0))
    assert channel.receive(timeout_s=LIMIT_S) == Load(0)

    def leave() -> None:
        assert channel.receive(timeout_s=LIMIT_S) == Stop()
        for link in links:
            link.close()

    ranks = threading.Thread(target=leave)
    ranks.start()
    assert running.stop(LIMIT_S) == 0
    ranks.join()


def test_rank_0_can_leave_a_long_frame_unread_while_its_host_lives(node: Node) -> None:
    """A frame with 2,000 blocks fills the connection's buffer while rank 0 restores its optimizer.
    The kernel must not close this connection. It detects a lost host on the rank's other
    connection, which keeps its timeout of 30 s."""
    running = node.start()
    first = node.gathered()[0]
    channel, lease = first.channel(), Train(0, ("/" + 128 * "x",) * 2000, 0)
    channel.send(Hello(0, 2, LAYOUT.digest, 10, "cpu", 3))
    assert isinstance(receive(running, timeout_s=LIMIT_S), Hello)
    # Both ends of rank 0's connection for frames, and of the connections of both ranks for slices.
    assert timeouts_ms(node.trainers.port) == Counter({0: 2, 30_000: 4})
    running.send(lease)
    assert channel.receive(timeout_s=LIMIT_S) == lease


def timeouts_ms(port: int) -> Counter[int]:
    """Count the timeouts of this process's TCP connections from or to `port`."""
    found = Counter[int]()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(fd.name))) as sock:
            if sock.family != socket.AF_INET:
                continue
            if port in (sock.getsockname()[1], sock.getpeername()[1]):
                found[sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)] += 1
    return found


def test_rank_that_disconnects_ends_the_others_and_all_can_return(node: Node) -> None:
    generations = set()
    for _ in range(3):
        running = node.start()
        links = node.gathered()
        generations.add(links[0].generation)
        channel = links[0].channel()
        links[1].close()
        assert error_of(running).code == "TRAINER-RANKS"
        assert error_of(running).what == f"rank 1 at {HOST} has disconnected"
        with pytest.raises(TrainerError, match="the node has disconnected"):
            channel.receive(timeout_s=LIMIT_S)
        running.stop(0.0, again=True)
    assert len(generations) == 3
    with pytest.raises(TrainerError) as caught:
        node.start()
    assert caught.value.code == "TRAINER-RESTARTS"


def test_first_wait_for_ranks_has_no_limit_but_later_waits_do(node: Node) -> None:
    running = node.start()
    running.check()  # There is no limit the first time.
    running.stop(0.0, again=True)
    running = node.start()
    running.check()
    node.gathered()[0].close()
    assert error_of(running).code == "TRAINER-RANKS"
    running.stop(0.0, again=True)
    running = node.start()
    with pytest.raises(TrainerError) as caught:
        running.check()
    assert caught.value.code == AWAY
    running.stop(0.0, again=True)
    with pytest.raises(TrainerError) as again:
        node.start()
    assert again.value is caught.value


def test_strangers_and_ranks_of_a_different_torchrun_are_refused(node: Node) -> None:
    running = node.start()
    while not node.told:  # On a busy machine, half a second may be too short.
        with pytest.raises(NetworkUnreachable):
            join(node.caller(0, secret=b"o" * 32), limit_s=0.5)
    with pytest.raises(ConfigError, match="expects 2 ranks, and torchrun started 3"):
        join(node.caller(0, ranks=3), limit_s=LIMIT_S)
    assert running.waits_for.startswith("for 2 of 2")
    event, fields = node.told[0]
    assert (event, fields["reason"]) == (
        "rank-refused",
        "the caller does not know the ranks' secret",
    )


def test_rank_that_connects_twice_replaces_its_first_connection(node: Node) -> None:
    running = node.start()
    early = node.caller(1).call(Purpose.SLICES)
    assert node.news.wait(timeout=LIMIT_S)
    assert running.waits_for.startswith("for 1 of 2")
    late = threading.Thread(target=lambda: node.links.append(join(node.caller(1), limit_s=LIMIT_S)))
    late.start()
    assert early.recv(1) == b""
    node.links.append(join(node.caller(0), limit_s=LIMIT_S))
    late.join()
    assert running.waits_for == ""
    early.close()


def test_rank_gets_its_place_even_if_its_old_socket_fails_to_close(config: TrainerConfig) -> None:
    """The other end of the rank's old connection is gone, and the thread that serves the rank has
    not noticed yet. So a shutdown of the socket fails, as with a socket that never connected."""
    reset, vector = socket.socket(), memoryview(bytearray(4 * LAYOUT.numel))
    door = open_door(HOST, 0)
    gathering = RankGathering(
        *(door, SECRET, config, 1, vector, vector, 7, lambda *_, **__: None), {0: reset}
    )
    link = join(NodeCredentials(HOST, door.getsockname()[1], SECRET, 0, 1), limit_s=LIMIT_S)
    assert (link.generation, gathering.error) == (7, None)
    link.close()
    gathering.end(TrainerError("the test is over"))
    gathering.close(LIMIT_S)
    reset.close()


def test_rank_that_connects_again_ends_its_old_group(node: Node) -> None:
    """The rank's host has lost its old connection, and the node has not noticed."""
    running = node.start()
    node.gathered()
    late = node.caller(1).call(Purpose.SLICES)
    assert late.recv(1) == b""
    assert error_of(running).what == "rank 1 has connected again"
    late.close()


def test_rank_out_of_memory_halves_the_next_ranks_micro_batch(node: Node) -> None:
    running = node.start()
    before = node.trainers.config
    node.gathered()[0].report_end(OUT_OF_MEMORY_EXIT_CODE)
    assert isinstance(error_of(running), TrainerOutOfMemory)
    running.stop(0.0, again=True)
    node.start()
    assert node.trainers.config == replace(before, micro_batch=2)


def test_halving_begins_with_the_number_that_the_ranks_used(node: Node) -> None:
    running, first = node.start(), node.gathered()[0]
    told: list[Halving] = []
    node.trainers.on_halving = told.append
    first.channel().send(Hello(0, 2, LAYOUT.digest, 10, "A GPU", 2, 700))
    assert isinstance(receive(running, timeout_s=LIMIT_S), Hello)
    first.report_end(OUT_OF_MEMORY_EXIT_CODE)
    assert "with 2 sequences at once; trying 1" in error_of(running).what
    running.stop(0.0, again=True)
    node.start()
    assert node.trainers.config.micro_batch == 1
    assert told == [Halving("A GPU", 700, 1)]


@pytest.mark.parametrize("place", [slice(0, LAYOUT.numel + 1), slice(LAYOUT.numel, 10**9)])
def test_access_beyond_the_layout_is_refused(node: Node, place: slice) -> None:
    running = node.start()
    link = node.gathered()[0]
    link.vectors(Layout.of([("a", (10**6,))]))
    with pytest.raises(ConnectionError):
        link.fetch([place])
    assert "beyond the layout" in error_of(running).what


def test_silence_counts_only_after_all_ranks_have_connected(node: Node) -> None:
    node.trainers.patience = AnswerTimeout(start_limit_s=0.0)
    running = node.start()
    running.check()
    node.gathered()
    with pytest.raises(TrainerStalled):
        running.check()


def test_answers_are_received_and_invalid_ones_refused(node: Node) -> None:
    running = node.start()
    channel = node.gathered()[0].channel()
    running.check()
    running.send(Train(0, ("a",), 0))
    channel.send(Progress(0, 0, 1.0, 1.0, 1))
    frames = running.feed(running.socket.recv(4096))
    assert [frame.kind for frame in frames] == ["progress"]
    with pytest.raises(TrainerError, match="invalid message"):
        running.feed(b"\xff" * 8)


def test_hello_within_the_first_second_counts(node: Node) -> None:
    """Ranks of a small model send Hello before the node's first check for silence, which it makes
    once a second."""
    node.trainers.patience = AnswerTimeout(start_limit_s=0.0)
    running = node.start()
    channel = node.gathered()[0].channel()
    channel.send(Hello(0, 2, LAYOUT.digest, 10, "cpu", 1))
    assert [frame.kind for frame in running.feed(running.socket.recv(4096))] == ["hello"]
    running.check()


def test_listen_address_of_a_different_machine_is_reported(node: Node) -> None:
    node.trainers.host = "203.0.113.9"
    with pytest.raises(TrainerError) as caught:
        node.trainers.start()
    assert caught.value.code == "RANKS-LISTEN"


def test_connections_beyond_the_limit_are_closed(node: Node) -> None:
    node.start()
    silent = [socket.create_connection((HOST, node.trainers.port)) for _ in range(24)]
    turned_away = 0
    for each in silent[19:]:
        each.settimeout(LIMIT_S)
        turned_away += each.recv(1) == b""
    assert turned_away == 5
    for each in silent:
        each.close()


class Deaf:
    """A listener whose accept fails a few times, as if there were no free file descriptors."""

    def __init__(self, door: socket.socket, times: int) -> None:
        self._door, self.times = door, times

    def accept(self) -> tuple[socket.socket, Any]:
        if self.times:
            self.times -= 1
            raise OSError(24, "Too many open files")
        return self._door.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._door, name)


def test_listener_survives_a_temporary_failure_of_accept(node: Node) -> None:
    node.trainers.listen = lambda host, port: Deaf(open_door(host, port), 1)  # type: ignore[return-value,assignment]
    running = node.start()
    assert len(node.gathered()) == 2
    assert running.waits_for == ""
    deaf = [fields["reason"] for event, fields in node.told if event == "rank-not-heard"]
    assert deaf == ["Too many open files"]


def test_early_or_second_connection_for_frames_is_refused(node: Node) -> None:
    running = node.start()
    early = node.caller(0).call(Purpose.FRAMES)
    assert early.recv(1) == b""
    early.close()
    hello = Hello(0, 2, LAYOUT.digest, 10, "cpu", 3)
    node.gathered()[0].channel().send(hello)
    assert receive(running, timeout_s=10.0) == hello
    second = node.caller(0).call(Purpose.FRAMES)
    assert second.recv(1) == b""
    second.close()


def test_wrong_node_is_distinguished_from_an_absent_one() -> None:
    false = socket.create_server((HOST, 0))
    port = false.getsockname()[1]

    def pretend() -> None:
        caller, _ = false.accept()
        with caller, suppress(OSError):  # The rank disconnects as soon as it detects this.
            caller.sendall(b"p2prank\x01" + bytes(64))
            caller.recv(4096)

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(ConfigError) as caught:
        join(NodeCredentials(HOST, port, SECRET, 0, 2), limit_s=LIMIT_S)
    assert caught.value.code == "RANKS-SECRET"
    thread.join()
    false.close()
    with pytest.raises(NetworkUnreachable, match=f"{HOST}:{port}"):
        join(NodeCredentials(HOST, port, SECRET, 0, 2), limit_s=0.1)


def test_gloo_uses_the_interface_through_which_the_node_is_reached(node: Node) -> None:
    node.start()
    assert node.gathered()[0].interface == "lo"
