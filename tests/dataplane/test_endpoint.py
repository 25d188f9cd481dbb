"""An endpoint received from a peer is checked field by field."""

from __future__ import annotations

import pytest

from p2ptrain.dataplane import Credentials, Endpoint
from p2ptrain.encoding import pack, unpack
from p2ptrain.errors import RemoteProtocolError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_endpoint_survives_encoding(server: Credentials, host: str) -> None:
    endpoint = Endpoint(server.peer, host, 4202, server.certificate_der)
    wire = unpack(pack(endpoint.to_wire()), bytes_max=4096)
    assert Endpoint.from_wire(wire) == endpoint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peer", "nobody"),
        ("peer", 7),
        ("host", "example.org"),
        ("host", "1" * 500),
        ("host", ""),
        ("host", "fe80::1%eth0"),
        ("host", "fe80::1%\x1b[2J\n"),
        ("port", 0),
        ("port", 65536),
        ("port", -1),
        ("port", True),
        ("port", "80"),
        ("certificate", b""),
        ("certificate", b"x" * 5000),
        ("certificate", "text"),
        ("more", 1),
    ],
)
def test_endpoint_with_an_invalid_field_is_refused(
    server: Credentials, field: str, value: object
) -> None:
    good = Endpoint(server.peer, "127.0.0.1", 4202, server.certificate_der).to_wire()
    with pytest.raises(RemoteProtocolError):
        Endpoint.from_wire({**good, field: value})


@pytest.mark.parametrize("value", [None, 7, [], b"", {}])
def test_message_that_is_not_a_map_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        Endpoint.from_wire(value)
