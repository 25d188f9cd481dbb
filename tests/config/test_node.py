"""Invalid options of a node are refused, with the name of the option and advice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.config.node import NodeConfig, parse_host_port, parse_rate
from p2ptrain.errors import ConfigError
from p2ptrain.ids import RunId


def test_home_is_the_only_required_option() -> None:
    config = NodeConfig(Path("/h"))
    assert config == NodeConfig(
        home=Path("/h"),
        bootstrap=(),
        listen=None,
        announce=(),
        data_host="",
        data_port=0,
        seed=False,
        ranks=1,
        threads=1,
        device="auto",
        limit_up_bytes_per_s=None,
        wait_for_approval=True,
        run=None,
        assume_yes=False,
        mdns=False,
        quiet=False,
    )


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeConfig(Path("/h")).seed = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("ranks", 0, "--ranks"),
        ("ranks", 65, "--ranks"),
        ("ranks_host", "0.0.0.0", "--ranks-listen"),
        ("ranks_host", "203.0.113.7x", "--ranks-listen"),
        ("ranks_host", "8.8.8.8", "--ranks-listen"),
        ("threads", 0, "--threads"),
        ("device", "tpu", "--device"),
        ("data_port", 65_536, "--data-listen"),
        ("limit_up_bytes_per_s", 999, "--limit-up"),
        ("run", RunId("abc"), "--run"),
        ("listen", (), "--listen"),
    ],
)
def test_invalid_option_is_reported(field: str, value: Any, option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(NodeConfig(Path("/h")), **{field: value})
    assert caught.value.what == f"{option} is {value!r}"
    assert caught.value.do


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("8Mbit", 1_000_000),
        ("8 Mbit/s", 1_000_000),
        ("500kbit", 62_500),
        ("2.5MB", 2_500_000),
        ("1Gbps", None),
        ("1Gbitps", 125_000_000),
        ("9600bit", 1_200),
        ("8", None),
        ("8M", None),
        ("fast", None),
        ("-8Mbit", None),
        ("", None),
    ],
)
def test_rate_is_a_number_with_a_unit(text: str, bytes_per_s: int | None) -> None:
    if bytes_per_s is not None:
        assert parse_rate(text) == bytes_per_s
        return
    with pytest.raises(ConfigError) as caught:
        parse_rate(text)
    assert "8Mbit" in caught.value.do


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::]:4202", ("::", 4202)),
        ("seed.example:65535", ("seed.example", 65535)),
        ("0.0.0.0", None),
        (":4202", None),
        ("host:", None),
        ("host:65536", None),
        ("host:-1", None),
        ("host:４", None),
    ],
)
def test_host_and_port_are_parsed(text: str, parts: tuple[str, int] | None) -> None:
    if parts is not None:
        assert parse_host_port(text) == parts
        return
    with pytest.raises(ConfigError):
        parse_host_port(text)
