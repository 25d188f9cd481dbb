"""An old invitation still works if a member of its run is in the local network."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import NetworkUnreachable, P2PTrainError, RunMismatch
from p2ptrain.ids import PeerId
from p2ptrain.net import Network
from p2ptrain.node.joining.first_contact import find_first_run
from p2ptrain.node.joining.nearby_run import Start, look_nearby
from p2ptrain.run import Run
from p2ptrain.testing.published import publish
from tests.node.joining.test_several_addresses import given, newcomer_and, refuses, serves
from tests.node.rig import CAI, settled

GONE = f"/ip4/127.0.0.1/tcp/1/p2p/{CAI.peer}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return publish(Home(tmp_path / "organiser"))


def hears(network: Network, *ways: str, works: bool = True) -> tuple[Start, list[float]]:
    """Return a search that hears of the peers at `ways`, and the times at which it was started."""
    started: list[float] = []

    async def start() -> bool:
        started.append(trio.current_time())
        for way in ways:
            network.record_reported(PeerId(way.rpartition("/")[2]), [way])
        return works

    return start, started


async def test_old_invitation_leads_to_a_member_in_the_local_network(
    tmp_path: Path, run: Run
) -> None:
    """Another peer in that network does not serve the run."""
    config, lines = given(tmp_path, [GONE], run=run.id, searches_lan=True), list[str]()
    async with newcomer_and(refuses, partial(serves, run)) as (network, ways):
        start, started = hears(network, *ways)
        found = await find_first_run(
            network, config, [GONE], lines.append, print, first_look_s=60.0, start_search=start
        )
    assert found == run
    assert len(started) == 1
    assert lines[0].startswith("no address in your invitation leads to the run; looking")
    (last,) = lines[1:]
    assert last.startswith("found a peer in your local network that serves exactly this run")


async def test_local_network_is_left_alone_while_an_address_answers(
    tmp_path: Path, run: Run
) -> None:
    async with newcomer_and(partial(serves, run)) as (network, (way,)):
        start, started = hears(network)
        config = given(tmp_path, [GONE, way], run=run.id, searches_lan=True)
        found = await find_first_run(network, config, [GONE, way], print, print, start_search=start)
    assert (found, started) == (run, [])


@pytest.mark.parametrize("works", [True, False])
async def test_search_that_finds_nobody_ends_in_the_error_of_the_addresses(
    tmp_path: Path, run: Run, works: bool
) -> None:
    """With --no-wait, the node does not wait for a peer. One with another run does not count."""
    other = publish(Home(tmp_path / "other"))
    config = given(tmp_path, [GONE], run=run.id, searches_lan=True, wait_for_approval=False)
    lines: list[str] = []
    async with newcomer_and(partial(serves, other)) as (network, (way,)):
        start, started = hears(network, way, works=works)
        with pytest.raises(NetworkUnreachable) as caught:
            await find_first_run(
                network, config, [GONE], lines.append, print, first_look_s=0.2, start_search=start
            )
    assert caught.value.code == "NET-REFUSED"
    assert len(started) == len(lines) == 1
    assert ("is not possible" in lines[0]) is not works


async def test_address_that_now_serves_another_run_does_not_end_the_search(
    tmp_path: Path, run: Run
) -> None:
    """The old address belongs to somebody else today."""
    other = publish(Home(tmp_path / "other"))
    async with newcomer_and(partial(serves, other), partial(serves, run)) as (network, ways):
        start, _ = hears(network, ways[1])
        config = given(tmp_path, ways[:1], run=run.id, searches_lan=True)
        find = partial(find_first_run, first_look_s=60.0, start_search=start)
        assert await find(network, config, ways[:1], print, print) == run
        silent, _ = hears(network)
        with pytest.raises(RunMismatch):
            find = partial(find_first_run, first_look_s=0.0, start_search=silent)
            await find(network, given(tmp_path, ways[:1], run=run.id), ways[:1], print, print)


async def test_member_that_comes_home_later_is_found_while_the_node_waits(
    tmp_path: Path, run: Run, nursery: trio.Nursery
) -> None:
    config = given(tmp_path, [GONE], run=run.id, searches_lan=True)
    found, lines, states = list[Run | P2PTrainError](), list[str](), list[str]()
    async with newcomer_and(partial(serves, run)) as (network, (way,)):
        start, started = hears(network)
        find = partial(
            find_first_run, retry_s=30.0, look_s=0.01, first_look_s=0.0, start_search=start
        )

        async def look() -> None:
            found.append(await find(network, config, [GONE], lines.append, states.append))

        nursery.start_soon(look)
        await settled(lambda: bool(states))
        network.record_reported(PeerId(way.rpartition("/")[2]), [way])
        await settled(lambda: found == [run], deadline_s=60.0)
    assert len(started) == 1
    assert " or in the local network since " in states[0]


async def test_search_is_announced_once(tmp_path: Path) -> None:
    lines: list[str] = []
    async with newcomer_and() as (network, _):
        start, started = hears(network)
        assert await look_nearby(network, lines.append, start)
    assert len(lines) == len(started) == 1
    assert "--no-mdns switches this off" in lines[0]
