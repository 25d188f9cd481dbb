"""A node without a run waits for a peer that is down, but does not accept any run unseen."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest
import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import ConfigError, NetworkUnreachable
from p2ptrain.ids import PeerId
from p2ptrain.net import open_network
from p2ptrain.node.joining.find_run import in_words
from p2ptrain.node.joining.first_contact import check_bootstrap, find_first_run
from p2ptrain.observe.waits import clock_time
from p2ptrain.peers.protocol_names import HELLO_PROTOCOL
from p2ptrain.run import Run
from p2ptrain.testing.published import publish
from tests.node.joining.test_several_addresses import given, newcomer_and, serves
from tests.node.rig import BOB, CAI, settled

NINE = 1_800_000_000.0
"""A time in Unix seconds."""


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return publish(Home(tmp_path / "organiser"))


@pytest.mark.parametrize(
    ("address", "code"),
    [("me", "ADDR-SYNTAX"), ("/ip4/203.0.113.7/tcp/4201", "ADDR-NO-PEER-ID")],
)
def test_malformed_address_is_an_error_beside_good_ones(
    address: str, code: str, tmp_path: Path
) -> None:
    good = f"/ip4/203.0.113.7/tcp/4201/p2p/{CAI.peer}"
    check_bootstrap(given(tmp_path, [good]))
    with pytest.raises(ConfigError) as caught:
        check_bootstrap(given(tmp_path, [good, address]))
    assert caught.value.code == code


async def test_node_waits_for_a_seed_that_is_down(
    tmp_path: Path, run: Run, nursery: trio.Nursery
) -> None:
    """The node once ended with status 5, and its user had to start it again."""
    port, lines, states, found = unused_port(), list[str](), list[str](), list[Run]()
    way = f"/ip4/127.0.0.1/tcp/{port}/p2p/{BOB.peer}"
    config = given(tmp_path, [way])
    async with newcomer_and() as (network, _):

        async def look() -> None:
            find = partial(find_first_run, retry_s=0.01, wall=lambda: NINE)
            found.append(await find(network, config, [way], lines.append, states.append))

        nursery.start_soon(look)
        await settled(lambda: len(states) > 1)
        assert not found
        listen = [f"/ip4/127.0.0.1/tcp/{port}"]
        async with open_network(BOB, listen=listen, admitted=lambda _: True) as seed:
            seed.handle(HELLO_PROTOCOL, partial(serves, run), anyone=True)
            await settled(lambda: found == [run])
    since = f"since {clock_time(NINE)}"
    assert sum("explain NET-REFUSED" in line for line in lines) == 1
    waits = [line for line in lines if line.startswith("waiting")]
    assert waits[0] == f"waiting {since} for a peer at {way}; next try in 0 s"
    assert states[0].startswith(f"for a peer at {way} {since}")


async def test_script_with_no_wait_learns_at_once_that_the_seed_is_down(tmp_path: Path) -> None:
    way = f"/ip4/127.0.0.1/tcp/{unused_port()}/p2p/{BOB.peer}"
    config = given(tmp_path, [way], wait_for_approval=False)
    async with newcomer_and() as (network, _):
        with pytest.raises(NetworkUnreachable) as caught:
            await find_first_run(network, config, [way], print, print)
    assert caught.value.code == "NET-REFUSED"


async def test_yes_does_not_accept_a_run_that_a_stranger_offers(tmp_path: Path, run: Run) -> None:
    config = given(tmp_path, [], mdns=True, assume_yes=True)
    async with newcomer_and(partial(serves, run)) as (network, (way,)):
        network.record_reported(PeerId(way.rpartition("/")[2]), [way])
        with pytest.raises(ConfigError) as caught:
            await find_first_run(network, config, [], print, print, look_s=0.01)
    assert (caught.value.code, caught.value.exit_code) == ("CONSENT", 2)
    assert caught.value.evidence == (f"found   {in_words(run)}",)
    assert "--run RUNID" in caught.value.do


async def test_yes_accepts_the_run_that_the_user_named(tmp_path: Path, run: Run) -> None:
    config = given(tmp_path, [], mdns=True, assume_yes=True, run=run.id)
    async with newcomer_and(partial(serves, run)) as (network, (way,)):
        network.record_reported(PeerId(way.rpartition("/")[2]), [way])
        assert await find_first_run(network, config, [], print, print, look_s=0.01) == run
