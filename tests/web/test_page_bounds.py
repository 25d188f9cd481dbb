"""Texts from peers are bounded and harmless before they reach the page."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from p2ptrain.errors import ConfigError
from p2ptrain.observe.series.rows import SampleRow
from p2ptrain.web import capped
from p2ptrain.web.actions import details_in
from p2ptrain.web.guard import is_loopback
from p2ptrain.web.listener import PORTS_TRIED, bind
from p2ptrain.web.main import load_token
from p2ptrain.web.page_file import page_of
from tests.web.serving import PEERS, served, status

BIDI = "\u202eevil\u2066"
HUGE = "<script>alert(1)</script>" + BIDI + "\x1b[2J" + "A" * 1_000_000


async def test_hostile_texts_of_the_node_are_bounded(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        hostile: dict[str, Any] = {
            "state": HUGE,
            "waits_for": HUGE,
            "asking": (HUGE[:1000],) * 1000,
        }
        page.node.says = status(**hostile)
        page.writer.write([SampleRow(5, 0, PEERS[0], "<b>one</b>\nline\u202e")])
        bodies = {
            path: (await page.ask(path))[2].decode()
            for path in ("/api/v1/state", "/run.txt", "/metrics", "/api/v1/samples")
        }
    state = json.loads(bodies["/api/v1/state"])
    assert len(state["status"]["asking"]) == capped.ITEMS_MAX
    assert len(state["status"]["state"]) == capped.TEXT_CHARACTERS_MAX + 1
    assert state["status"]["state"].startswith("<script>alert(1)</script>·evil··[2J")
    assert max(len(body) for body in bodies.values()) < 300_000
    assert not any(letter in body for body in bodies.values() for letter in "\u202e\u2066\x1b")
    samples = json.loads(bodies["/api/v1/samples"])["samples"]
    assert [each["text"] for each in samples] == ["<b>one</b>\nline·"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (1 / 3, 0.333333),
        (1_795_726_683.456, 1_795_726_683.46),
        ({"a" * 200: [True, None, 7]}, {"a" * 80 + "…": [True, None, 7]}),
        (b"bytes", None),
        ("tab\there", "tab·here"),
    ],
)
def test_value_is_bounded(value: object, expected: object) -> None:
    assert capped.plain(value) == expected


def test_deep_values_are_cut_off() -> None:
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    assert json.dumps(capped.plain(deep)).count("[") == capped.DEPTH_MAX


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:4280", True),
        ("127.0.0.1", True),
        ("localhost:4280", True),
        ("LOCALHOST", True),
        ("[::1]:4280", True),
        ("[::1]", True),
        ("", False),
        ("::1", False),
        ("localhost.evil.example", False),
        ("evil.example", False),
        ("127.0.0.1:4280@evil.example", False),
        ("[::1", False),
        ("[::1]x", False),
        ("0.0.0.0:4280", False),
        ("192.168.1.7:4280", False),
    ],
)
def test_only_loopback_names_are_served(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_policy_names_the_digest_of_each_script_and_style() -> None:
    script, style = "let a = '<b>';\n", "p { color: red }"
    page = page_of(f"<style>{style}</style><p>&amp;<script>{script}</script>".encode())
    digests = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (script, style)
    ]
    assert f"script-src 'sha256-{digests[0]}';" in page.content_policy
    assert f"style-src 'sha256-{digests[1]}';" in page.content_policy


@pytest.mark.parametrize(
    ("body", "details"),
    [
        (b'{"for_s": 60}', {"for_s": 60}),
        (b'{"up": "20Mbit", "daily": null}', {"up": "20Mbit", "daily": None}),
        (b"{}", {}),
        (b"", None),
        (b"[]", None),
        (b'{"a": {"b": 1}}', None),
        (b'{"command": "status"}', None),
        (json.dumps({str(n): n for n in range(17)}).encode(), None),
    ],
)
def test_details_of_an_action_are_a_few_scalars(body: bytes, details: object) -> None:
    assert details_in(body) == details


def test_token_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "page.token"
    path.touch()
    token = load_token(path)
    assert (len(token), load_token(path)) == (32, token)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        load_token(path)
    assert caught.value.code == "PAGE-TOKEN"


def test_next_free_port_is_used() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:
            assert port < second.getsockname()[1] < port + PORTS_TRIED
