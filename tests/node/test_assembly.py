"""A node opens all its parts in order, and announces an address at which its data plane can be
reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.archive.admission import Admission
from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.errors import ConfigError, StoreError, VersionMismatch
from p2ptrain.identity import load_or_create
from p2ptrain.ids import Digest
from p2ptrain.node.assembly import assembled
from p2ptrain.node.control.status import status
from p2ptrain.node.data_plane import outward_host
from p2ptrain.node.state.surroundings import Surroundings
from p2ptrain.observe.journal import Journal
from p2ptrain.observe.status import status_lines
from p2ptrain.run import Run
from p2ptrain.testing.published import manifest_of, policy, publish
from tests.node.rig import QUICK, PaperNetwork, rig

LAN, PUBLIC, V6 = "/ip4/192.168.1.7/tcp/1", "/ip4/203.0.113.7/tcp/1", "/ip6/2001:db8::7/tcp/1"
LOOP = "/ip4/127.0.0.1/tcp/1"


@pytest.mark.parametrize(
    ("addresses", "v6", "host"),
    [
        ([LAN], False, "192.168.1.7"),
        ([LOOP, LAN, PUBLIC], False, "192.168.1.7"),
        ([PUBLIC, LAN], False, "203.0.113.7"),
        ([V6, LAN], False, "192.168.1.7"),  # a socket on 0.0.0.0 cannot be reached over IPv6
        ([V6, LAN], True, "2001:db8::7"),
        ([LOOP], False, "127.0.0.1"),
        (["/ip6/::1/tcp/1", LOOP], True, "::1"),
    ],
)
def test_data_plane_is_announced_at_an_address_of_the_control_plane(
    addresses: list[str], v6: bool, host: str
) -> None:
    assert outward_host(addresses, v6=v6) == host


@pytest.mark.parametrize("addresses", [[], [V6], ["/dns4/node.example.org/tcp/1"], ["/memory"]])
def test_address_of_this_machine_is_announced_if_no_other_is_usable(
    addresses: list[str],
) -> None:
    assert outward_host(addresses, v6=False, own=lambda: "10.0.0.7") == "10.0.0.7"


async def assemble(home: Home, run: Run, **options: object) -> None:
    """Open all parts of a node with these options, and close them again."""
    admission = Admission(home)
    admission.set_run(run)
    config = NodeConfig(home.root, **({"data_host": "127.0.0.1"} | options))  # type: ignore[arg-type]
    identity = load_or_create(home.identity)
    network = PaperNetwork()
    with Journal(home.journal) as journal:
        around = Surroundings(config, home, journal, identity, run, admission, network, QUICK)  # type: ignore[arg-type]
        async with assembled(around):
            pass


async def test_run_with_a_different_parameter_layout_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    organiser = load_or_create(home.identity)
    manifest = manifest_of(organiser.peer)
    object.__setattr__(manifest, "layout", Digest("e" * 64))
    run = Run.publish(organiser, manifest)
    with pytest.raises(VersionMismatch) as caught:
        await assemble(home, run)
    assert caught.value.code == "RUN-VERSION"


async def test_data_port_in_use_is_reported_and_everything_is_closed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    run = publish(home)
    async with rig(tmp_path / "other") as r:
        with pytest.raises(ConfigError) as caught:
            await assemble(home, run, data_port=r.context.plane.endpoint.port)
    assert caught.value.code == "PORT-IN-USE"
    await assemble(home, run)


async def test_store_that_another_node_has_open_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        with pytest.raises(StoreError) as caught:
            await assemble(r.context.home, r.run)
    assert caught.value.code == "STORE-BUSY"


async def test_node_shares_theta_with_its_trainer_unless_it_is_a_seed(tmp_path: Path) -> None:
    async with rig(tmp_path / "a", seed=True) as r:
        assert not r.context.trains
    async with rig(tmp_path / "b") as r:
        assert r.context.trainer.arena is not None
        r.context.outer.vectors.theta[3] = 7.0
        assert r.context.trainer.arena.theta[3] == 7.0


async def test_run_without_encryption_shows_a_prominent_warning(tmp_path: Path) -> None:
    async with rig(tmp_path, rules=policy(encryption="none")) as r:
        assert "NOT ENCRYPTED" in r.context.alerts.warnings["encryption"].what
        assert len(r.said("plaintext")) == 1
        assert "NOT ENCRYPTED" in "\n".join(status_lines(await status(r.context)))
    async with rig(tmp_path / "other", rules=policy()) as r:
        assert "encryption" not in r.context.alerts
        assert r.said("plaintext") == []
