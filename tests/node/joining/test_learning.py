"""A node without a run asks the peers at the given addresses for one. If no peer sends the right
run, one error says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.archive.home import Home
from p2ptrain.config.node import NodeConfig
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import (
    NetworkUnreachable,
    P2PTrainError,
    PeerLost,
    RunMismatch,
    VersionMismatch,
)
from p2ptrain.identity import load_or_create
from p2ptrain.ids import PeerId, RunId
from p2ptrain.net import Accept
from p2ptrain.net.faults import none_answered
from p2ptrain.node.joining.find_run import fetch_run, return_to
from p2ptrain.peers.hello_messages import HelloReply, encode_reply
from p2ptrain.run import Run, Signed
from p2ptrain.run.manifest import KIND, MANIFEST_BYTES_MAX
from p2ptrain.testing.published import publish
from tests.node.rig import ANN, BOB, CAI


@dataclass
class Addresses:
    """A network in which the peers in `manifests` answer with their run's manifest; b"" makes a
    peer hang up. The address of each peer is its id."""

    manifests: dict[PeerId, bytes]

    async def connect_any(
        self, addresses: Sequence[str], *, or_else: Sequence[str], deadline_s: float, accept: Accept
    ) -> PeerId:
        failures: list[tuple[str, P2PTrainError]] = []
        for address in [*addresses, *or_else]:
            try:
                if address not in self.manifests:
                    raise NetworkUnreachable("nobody answers")
                await accept(PeerId(address), address)
            except P2PTrainError as exc:
                failures.append((address, exc))
            else:
                return PeerId(address)
        raise none_answered(failures)

    async def request(self, peer: PeerId, *rest: object, **limits: object) -> bytes:
        if not self.manifests[peer]:
            raise PeerLost("it hung up", peer=peer)
        return encode_reply(HelloReply(self.manifests[peer], b"", b"", True, {}))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return publish(Home(tmp_path / "other"))


async def failure(folder: Path, manifests: dict[PeerId, bytes]) -> P2PTrainError:
    config = NodeConfig(folder / "home", run=RunId("a" * 64))
    with pytest.raises(P2PTrainError) as caught:
        await fetch_run(Addresses(manifests), config, [ANN.peer, BOB.peer])  # type: ignore[arg-type]
    return caught.value


async def test_error_is_a_mismatch_if_all_addresses_serve_a_different_run(
    tmp_path: Path, run: Run
) -> None:
    error = await failure(tmp_path, {ANN.peer: run.to_bytes(), BOB.peer: run.to_bytes()})
    assert isinstance(error, RunMismatch)
    assert (error.exit_code, error.code, len(error.evidence)) == (3, "RUN-MISMATCH", 2)
    assert error.what == "these addresses serve a different run than you asked for"


@pytest.mark.parametrize("bob", [None, b""], ids=["does not answer", "hangs up"])
async def test_error_is_temporary_if_one_address_may_serve_the_right_run(
    tmp_path: Path, run: Run, bob: bytes | None
) -> None:
    """A service manager restarts the node after this error, but not after a RunMismatch."""
    others = {} if bob is None else {BOB.peer: bob}
    error = await failure(tmp_path, {ANN.peer: run.to_bytes(), **others})
    assert isinstance(error, NetworkUnreachable)
    assert error.exit_code == 5


async def test_run_of_another_version_does_not_hide_the_right_run(tmp_path: Path, run: Run) -> None:
    value: Any = unpack(run.manifest.to_payload(), bytes_max=MANIFEST_BYTES_MAX)
    organiser = load_or_create(Home(tmp_path / "other").identity)
    newer = Signed.by(organiser, KIND, pack(value | {"version": 99})).to_bytes()
    other = {ANN.peer: newer}
    network, config = Addresses({**other, BOB.peer: run.to_bytes()}), NodeConfig(tmp_path / "home")
    assert await fetch_run(network, config, [ANN.peer, BOB.peer]) == run  # type: ignore[arg-type]
    error = await failure(tmp_path, {**other, BOB.peer: newer})
    assert isinstance(error, VersionMismatch)
    assert isinstance(await failure(tmp_path, other), NetworkUnreachable)


@pytest.fixture
def earlier(tmp_path: Path) -> Run:
    """Return the run that the node's home contains."""
    return publish(Home(tmp_path / "home"), steps=3)


async def returned(
    run: Run, manifests: dict[PeerId, bytes], *given: PeerId, of_run: Sequence[PeerId] = ()
) -> list[str]:
    """Return the messages that the node shows while it connects to peers of `run` again. The node
    has met Cai before, and knows that the peers in `of_run` belong to `run`."""
    said, config = list[str](), NodeConfig(Path("home"), bootstrap=given)
    network = Addresses(manifests)
    await return_to(
        network,  # type: ignore[arg-type]
        config,
        run,
        [*given, CAI.peer],
        said.append,
        is_of_run=of_run.__contains__,
    )
    return said


async def test_mismatch_error_names_the_run_in_the_home_and_the_run_served(
    run: Run, earlier: Run
) -> None:
    """Cai, a peer of the home's run that the node has met before, would answer too. But the user
    did not give its address."""
    serves = {ANN.peer: run.to_bytes(), CAI.peer: earlier.to_bytes()}
    with pytest.raises(RunMismatch) as caught:
        await returned(earlier, serves, ANN.peer)
    told = "\n".join(caught.value.evidence)
    assert caught.value.exit_code == 3
    assert run.id in told
    assert earlier.id in told
    assert ANN.peer in told
    assert "--home with a new directory" in caught.value.do


async def test_bootstrap_node_that_turns_hostile_does_not_stop_a_restart(
    run: Run, earlier: Run
) -> None:
    """The bootstrap node, which belongs to the home's run, now serves a different run, validly
    signed by that run's organiser."""
    assert await returned(earlier, {ANN.peer: run.to_bytes()}, ANN.peer, of_run=[ANN.peer]) == []


@pytest.mark.parametrize(
    "bob", [None, b"", b"earlier"], ids=["does not answer", "hangs up", "serves the home's run"]
)
async def test_node_continues_if_one_address_may_serve_its_run(
    run: Run, earlier: Run, bob: bytes | None
) -> None:
    serves = {ANN.peer: run.to_bytes()}
    if bob is not None:
        serves[BOB.peer] = earlier.to_bytes() if bob else b""
    said = await returned(earlier, serves, ANN.peer, BOB.peer)
    assert said[-1].startswith(f"ignoring {ANN.peer}: it belongs to a different run, {run.id}")


async def test_node_continues_if_its_run_or_no_run_is_served(earlier: Run) -> None:
    assert await returned(earlier, {ANN.peer: earlier.to_bytes()}, ANN.peer) == []
    [said] = await returned(earlier, {}, ANN.peer)
    assert "continuing with the data on this disk" in said


async def test_known_peers_are_dialled_only_if_given_addresses_do_not_answer(
    run: Run, earlier: Run
) -> None:
    """If peers that the node has met before were dialled first, one of them could hide that the
    given address serves a different run."""
    serves = {CAI.peer: earlier.to_bytes(), ANN.peer: run.to_bytes()}
    with pytest.raises(RunMismatch):
        await returned(earlier, serves, ANN.peer)
    assert await returned(earlier, {CAI.peer: earlier.to_bytes()}, ANN.peer) == []


async def test_invitation_with_a_different_organiser_is_a_mismatch(
    tmp_path: Path, run: Run
) -> None:
    """The digest of the manifest proves the organiser, so the invitation must have been altered."""
    network = Addresses({ANN.peer: run.to_bytes()})
    rest = {"run": run.id, "bootstrap": (ANN.peer,)}
    right = NodeConfig(tmp_path / "home", organiser=run.manifest.organiser, **rest)  # type: ignore[arg-type]
    assert await fetch_run(network, right, [ANN.peer]) == run  # type: ignore[arg-type]
    wrong = NodeConfig(tmp_path / "home", organiser=BOB.peer, **rest)  # type: ignore[arg-type]
    with pytest.raises(RunMismatch) as caught:
        await fetch_run(network, wrong, [ANN.peer])  # type: ignore[arg-type]
    told = "\n".join(caught.value.evidence)
    assert BOB.peer in told
    assert run.manifest.organiser in told


async def test_old_invitation_works_while_one_of_its_addresses_leads_to_a_member(
    tmp_path: Path, run: Run
) -> None:
    network = Addresses({CAI.peer: run.to_bytes()})
    config = NodeConfig(tmp_path / "home", run=run.id, organiser=run.manifest.organiser)
    assert await fetch_run(network, config, [ANN.peer, BOB.peer, CAI.peer]) == run  # type: ignore[arg-type]
