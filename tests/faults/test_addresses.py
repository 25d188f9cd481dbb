"""The error for each kind of wrong address has its own code, says whose fault it is, and gives
advice.
"""

from __future__ import annotations

import pytest

from p2ptrain.identity import Identity
from p2ptrain.peers.hello_messages import HelloReply
from tests.faults.answering import (
    STRANGER,
    at,
    dead_port,
    hangs_up,
    is_a_web_server,
    peer,
    says_nothing,
    server,
)
from tests.faults.conftest import Here
from tests.faults.processes import NodeProcess


def test_address_where_nothing_listens_is_explained(node_here: Here) -> None:
    port = dead_port()
    screen = node_here("--bootstrap", at(port), "--no-wait")
    screen.is_error("NET-REFUSED", 5)
    assert at(port) in screen.evidence
    assert f"no program listens on port {port}" in screen.evidence
    assert "this machine itself" in screen.likely, "a loopback address is always on this machine"


def test_address_of_a_web_server_is_explained(node_here: Here) -> None:
    with server(is_a_web_server) as port:
        screen = node_here("--bootstrap", at(port))
    screen.is_error("NET-NOT-LIBP2P", 5)
    assert "HTTP" in screen.evidence
    assert "port" in screen.do


def test_connection_closed_at_once_is_explained(node_here: Here) -> None:
    with server(hangs_up) as port:
        screen = node_here("--bootstrap", at(port))
    screen.is_error("NET-RESET", 5)
    assert "closed the connection" in screen.evidence


def test_unknown_host_name_is_explained(node_here: Here) -> None:
    screen = node_here("--bootstrap", f"/dns4/no-such-host.invalid/tcp/4201/p2p/{STRANGER}")
    screen.is_error("NET-DNS", 5)
    assert "DNS" in screen.evidence
    assert "misspelt" in screen.likely


def test_each_of_several_addresses_is_explained(node_here: Here) -> None:
    with server(says_nothing) as silent:
        dead = dead_port()
        screen = node_here("--bootstrap", at(dead), "--bootstrap", at(silent))
    screen.is_error("NET-SILENT", 5)
    assert screen.what == "none of the 2 addresses answered"
    tried = screen.lines("tried")
    assert [line.split()[0] for line in tried] == [at(dead), at(silent)]
    assert "refused" in tried[0]
    assert "it sent no data" in tried[1]


def test_malformed_address_is_an_error_beside_good_ones(node_here: Here, seed: NodeProcess) -> None:
    screen = node_here("--bootstrap", seed.address(), "--bootstrap", "me")
    screen.is_error("ADDR-SYNTAX", 2)
    assert screen.what.startswith("'me' is not an address")
    assert "connecting" not in screen.err, "the good address is not even tried"


def test_address_of_another_peer_is_explained(node_here: Here, seed: NodeProcess) -> None:
    address, _, real = seed.address().rpartition("/p2p/")
    screen = node_here("--bootstrap", f"{address}/p2p/{STRANGER}")
    screen.is_error("NET-WRONG-ID", 5)
    assert f"a different peer, {real}, answers at that address" in screen.evidence
    assert "new address" in screen.do


def test_libp2p_host_that_is_not_a_node_is_explained(node_here: Here) -> None:
    def no_answer() -> HelloReply:
        raise ZeroDivisionError("a bug in the peer")

    with peer(Identity.from_seed(b"p" * 32), no_answer) as other:
        screen = node_here("--bootstrap", other.address)
    screen.is_error("PEER-FAILED", 5)
    assert other.address in screen.evidence


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("203.0.113.7:4201", "ADDR-SYNTAX", "has the form /ip4/HOST/tcp/PORT/p2p/PEER"),
        ("/ip4/203.0.113/tcp/4201", "ADDR-SYNTAX", "'203.0.113' is not an ip4 address"),
        ("/ip4/203.0.113.7/udp/4201", "ADDR-SYNTAX", "p2ptrain uses tcp only, not 'udp'"),
        ("/ip4/203.0.113.7/tcp/99999", "ADDR-SYNTAX", "'99999' is not a port"),
        (f"/ip4/203.0.113.7/tcp/1/p2p/{STRANGER[:-9]}", "ADDR-SYNTAX", "is not a peer id"),
        ("\x1b[2J", "ADDR-SYNTAX", "is not an address"),
        ("", "ADDR-SYNTAX", "is not an address"),
        ("/ip4/203.0.113.7/tcp/4201", "ADDR-NO-PEER-ID", "does not name its peer"),
    ],
)
def test_malformed_address_is_explained(
    address: str, code: str, says: str, node_here: Here
) -> None:
    screen = node_here("--bootstrap", address)
    screen.is_error(code, 2)
    assert says in screen.what
    assert "\x1b" not in screen.err
    assert "/p2p/" in screen.do or "complete address" in screen.do


def test_missing_address_is_explained(node_here: Here) -> None:
    screen = node_here()
    screen.is_error("ADDR-NONE", 2)
    assert "--bootstrap" in screen.do


def test_own_address_is_explained(
    node_here: Here, here: Here, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("own")
    me = here("id", "--home", home).out.strip()
    screen = node_here("--bootstrap", f"/ip4/203.0.113.7/tcp/4201/p2p/{me}", home=home)
    screen.is_error("ADDR-SELF", 2)
    assert "another machine uses a copy of this node's key" in screen.likely
