"""An endpoint with a loopback address is dialled only if its peer is connected from this same
machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2ptrain.dataplane import Endpoint
from p2ptrain.encoding import pack
from p2ptrain.node.gossip.path_probes import whom_to_probe
from p2ptrain.node.outer_state import fetch
from tests.node.rig import ANN, heartbeat, opening, rig

OURS = ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"]
FAR = ["10.0.0.1", "203.0.113.7", "2001:db8::1", "::ffff:10.0.0.1"]


@pytest.mark.parametrize("host", OURS)
async def test_loopback_endpoint_of_a_remote_peer_is_not_dialled(tmp_path: Path, host: str) -> None:
    async with rig(tmp_path) as r:
        context, endpoint = r.context, Endpoint(ANN.peer, host, 22, b"certificate")
        r.decide(opening(context.ledger.snapshot, learners=(ANN.peer,)))
        beat = heartbeat(r.run.id, endpoint=pack(endpoint.to_wire()))
        context.peers.table.note_heartbeat(ANN.peer, beat, context.now())
        context.peers.detector.note_arrival(ANN.peer, context.now())
        for site in ("127.0.0.1", "::/64"):
            r.network.sites[ANN.peer] = site
            assert fetch.sources(context) == [endpoint]
            assert whom_to_probe(context, {}) == endpoint
        for site in ("10.0.0.2", "2001:db8::/64", ""):
            r.network.sites[ANN.peer] = site
            assert fetch.sources(context) == []
            assert whom_to_probe(context, {}) is None


@pytest.mark.parametrize("host", FAR)
async def test_endpoint_that_is_not_on_loopback_is_dialled_for_any_peer(
    tmp_path: Path, host: str
) -> None:
    async with rig(tmp_path) as r:
        for site in ("127.0.0.1", "10.0.0.2", ""):
            r.network.sites[ANN.peer] = site
            assert r.context.peers.may_be_at(Endpoint(ANN.peer, host, 22, b"certificate"))
