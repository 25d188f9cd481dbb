"""A node without a run asks the peers at several addresses for one at the same time, over real
connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import NetworkUnreachable, NotAuthorised, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.net import Network, open_network
from p2ptrain.node.gossip.hello_client import HELLO_S
from p2ptrain.node.joining.find_run import fetch_run, wait_for_run
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL
from p2ptrain.run import Run
from p2ptrain.testing.published import publish
from tests.node.rig import CAI, settled, somebody

Answer = Callable[[PeerId, bytes], Awaitable[bytes]]

SILENT = 5


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return publish(Home(tmp_path / "organiser"))


async def serves(run: Run, peer: PeerId, payload: bytes) -> bytes:
    return encode_reply(HelloReply(run.to_bytes(), b"", b"", True, {}))


async def refuses(peer: PeerId, payload: bytes) -> bytes:
    raise NotAuthorised("not today")


@asynccontextmanager
async def newcomer_and(*answers: Answer) -> AsyncIterator[tuple[Network, list[str]]]:
    """Open a newcomer's network, and one peer for each of `answers`, which answers hellos with it.
    Yield the newcomer's network, and the peers' addresses."""
    async with AsyncExitStack() as stack:
        networks = [
            await stack.enter_async_context(
                open_network(
                    somebody(number), listen=["/ip4/127.0.0.1/tcp/0"], admitted=lambda _: True
                )
            )
            for number in range(1, len(answers) + 2)
        ]
        for network, answer in zip(networks[1:], answers, strict=True):
            network.handle(HELLO_PROTOCOL, answer, anyone=True)
        yield networks[0], [network.addresses()[0] for network in networks[1:]]


def given(folder: Path, addresses: Sequence[str], **settings: Any) -> NodeConfig:
    return NodeConfig(folder / "home", bootstrap=tuple(addresses), **settings)


async def test_silent_peers_do_not_delay_the_one_that_answers(tmp_path: Path, run: Run) -> None:
    """The honest peer answers only after all silent peers have been asked, so the test succeeds
    only if all are asked at once. If they were asked in turn, each silent peer would cost 10 s."""
    asked, all_asked = list[PeerId](), trio.Event()

    async def silent(number: int, peer: PeerId, payload: bytes) -> bytes:
        asked.append(peer)
        if len(asked) == SILENT:
            all_asked.set()
        await trio.sleep_forever()
        raise AssertionError

    async def honest(peer: PeerId, payload: bytes) -> bytes:
        await all_asked.wait()
        return await serves(run, peer, payload)

    answers: list[Answer] = [*(partial(silent, number) for number in range(SILENT)), honest]
    async with newcomer_and(*answers) as (network, addresses):
        with trio.fail_after(HELLO_S - 1):
            assert await fetch_run(network, given(tmp_path, addresses), addresses) == run


async def test_error_lists_every_address_with_its_reason(tmp_path: Path, run: Run) -> None:
    async with newcomer_and(partial(serves, run), refuses) as (network, addresses):
        gone = f"/ip4/127.0.0.1/tcp/1/p2p/{CAI.peer}"
        ways = [addresses[0], gone, "nonsense", addresses[1]]
        with pytest.raises(NetworkUnreachable) as caught:
            await fetch_run(network, given(tmp_path, ways, run="a" * 64), ways)
    reasons = ["serves another run", "refused after", "is not an address", "not today"]
    for way, reason, line in zip(ways, reasons, caught.value.evidence, strict=True):
        assert line.startswith(f"tried   {way}   ")
        assert reason in line


async def test_node_with_mdns_waits_for_a_peer_in_the_local_network(
    tmp_path: Path, run: Run, nursery: trio.Nursery
) -> None:
    """No address of its old invitation answers, and the LAN has a peer without a run."""
    gone = f"/ip4/127.0.0.1/tcp/1/p2p/{CAI.peer}"
    config, lines, found = given(tmp_path, [gone], run=run.id), list[str](), list[Run]()
    async with newcomer_and(refuses, partial(serves, run)) as (network, (first, second)):
        network.record_reported(PeerId(first.rpartition("/")[2]), [first])

        async def wait() -> None:
            found.append(await wait_for_run(network, config, [gone], lines.append, look_s=0.01))

        nursery.start_soon(wait)
        await settled(lambda: len(lines) > 0)
        assert not found
        network.record_reported(PeerId(second.rpartition("/")[2]), [second])
        await settled(lambda: found == [run], deadline_s=60.0)
        assert all("waiting for a peer of the run in the local network" in line for line in lines)


async def test_error_names_the_only_address(tmp_path: Path, run: Run) -> None:
    async with newcomer_and(partial(serves, run)) as (network, (way,)):
        with pytest.raises(RunMismatch) as caught:
            await fetch_run(network, given(tmp_path, [way], run="a" * 64), [way])
    assert any(way in line and run.id in line for line in caught.value.evidence)


async def test_peer_with_several_addresses_is_asked_only_once(tmp_path: Path) -> None:
    """A peer limits the rate of hellos. If it refused a second one, that refusal would hide its
    real answer."""
    asked = list[PeerId]()

    async def hangs_up(peer: PeerId, payload: bytes) -> bytes:
        asked.append(peer)
        raise NotAuthorised("not today")

    async with newcomer_and(hangs_up) as (network, (way,)):
        ways = [way, way.replace("/ip4/127.0.0.1/", "/dns4/localhost/")]
        with pytest.raises(NetworkUnreachable) as caught:
            await fetch_run(network, given(tmp_path, ways), ways)
    assert len(asked) == 1
    assert [way in line for way, line in zip(ways, caught.value.evidence, strict=True)] == [
        True
    ] * 2
