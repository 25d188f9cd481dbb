"""The page's server answers the owner's browser, and refuses other web pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from p2ptrain.names import peer_name
from tests.web.serving import PEERS, TOKEN, served


async def test_page_has_a_policy_that_allows_only_its_own_scripts(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    async with served(tmp_path, nursery) as page:
        code, headers, body = await page.ask("/")
        again = await page.ask("/", if_none_match=headers["etag"])
    assert (code, again[0]) == (200, 304)
    assert body.lower().startswith(b"<!doctype html>")
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert "connect-src 'self'" in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


async def test_state_says_what_the_node_does(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        code, _, body = await page.ask("/api/v1/state")
    state = json.loads(body)
    assert code == 200
    assert state["sentence"] == "Training (inner 3/10): step 5 of 600"
    assert state["can_act"] is True
    assert state["you"]["tokens"] == 1000
    assert state["you"]["share"] == 0.333333
    assert state["status"]["addresses"] == []
    assert len(state["status"]["members"]) == 3


async def test_unchanged_state_is_not_sent_again(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        _, headers, _ = await page.ask("/api/v1/state")
        unchanged = await page.ask("/api/v1/state", if_none_match=headers["etag"])
        page.node.says = replace(page.node.says, outer_step=6)
        await page.hub.look(0.0)
        changed = await page.ask("/api/v1/state", if_none_match=headers["etag"])
    assert (unchanged[0], unchanged[2]) == (304, b"")
    assert changed[0] == 200
    assert json.loads(changed[2])["serial"] > int(headers["etag"].strip('"'))


async def test_node_is_asked_once_a_second_at_most(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        await page.hub.look()
        before = len(page.node.asked)
        await page.hub.look()
        await page.hub.look()
        assert len(page.node.asked) == before


async def test_series_events_and_samples_have_names(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        series = json.loads((await page.ask("/api/v1/series?from=2&points=2"))[2])
        events = json.loads((await page.ask("/api/v1/events?limit=1"))[2])
        samples = json.loads((await page.ask("/api/v1/samples"))[2])
        wrong = await page.ask("/api/v1/series?from=-1")
    assert series["steps"]["step"] == [3, 5]
    assert {each["name"] for each in series["peers"]} == {peer_name(each) for each in PEERS}
    assert events["events"][0]["name"] == peer_name(PEERS[1])
    assert samples == {"schema": 1, "prompts": [], "samples": []}
    assert wrong[0] == 400


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4280", "127.0.0.1.evil.example", "203.0.113.7:4280"]
)
async def test_dns_rebinding_is_refused(nursery: trio.Nursery, tmp_path: Path, host: str) -> None:
    async with served(tmp_path, nursery) as page:
        found = [await page.ask(path, host=host) for path in ("/", "/api/v1/state", "/metrics")]
    assert [code for code, _, _ in found] == [403, 403, 403]
    assert page.node.asked == []


async def test_other_web_pages_can_neither_read_nor_act(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    foreign = "http://evil.example"
    async with served(tmp_path, nursery) as page:
        own = f"http://{page.host}"
        path, post = "/api/v1/actions/pause", "POST"
        codes = [
            (await page.ask("/api/v1/state", origin=foreign))[0],
            (await page.ask("/api/v1/stream", sec_fetch_site="cross-site"))[0],
            (await page.ask("/api/v1/state", sec_fetch_site="same-site"))[0],
            (await page.ask(path, post, b"{}", origin=foreign, x_p2ptrain_token=TOKEN))[0],
            (await page.ask(path, post, b"{}", x_p2ptrain_token=TOKEN))[0],
            (await page.ask(path, post, b"{}", origin=own))[0],
            (await page.ask(path, post, b"{}", origin=own, x_p2ptrain_token="wrong"))[0],
            (await page.ask(path, "GET", origin=own, x_p2ptrain_token=TOKEN))[0],
            (await page.ask("/api/v1/state", "OPTIONS"))[0],
        ]
    assert codes == [403, 403, 403, 403, 403, 401, 401, 405, 405]
    assert page.node.asked == []


async def test_action_with_token_reaches_the_node(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        told = {"origin": f"http://{page.host}", "x_p2ptrain_token": TOKEN}
        pause = await page.ask("/api/v1/actions/pause", "POST", b'{"for_s":60}', **told)
        finish = await page.ask("/api/v1/actions/finish", "POST", b"{}", **told)
        other = await page.ask("/api/v1/actions/scrub", "POST", b"{}", **told)
        trick = await page.ask("/api/v1/actions/pause", "POST", b'{"command":"scrub"}', **told)
        deep = await page.ask("/api/v1/actions/pause", "POST", b"[" * 4000, **told)
    assert (pause[0], json.loads(pause[2])) == (200, {"done": "paused for 60 s"})
    assert (finish[0], json.loads(finish[2])) == (409, {"error": "not now"})
    assert [each[0] for each in (other, trick, deep)] == [404, 400, 400]
    assert page.node.asked == [{"for_s": 60, "command": "pause"}, {"command": "finish"}]


async def test_node_that_does_not_answer_is_named(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        page.home.control.unlink()
        code, _, body = await page.ask("/api/v1/state")
        text = await page.ask("/run.txt")
    assert (code, json.loads(body)["status"]) == (200, None)
    assert text[2] == b"The node has not answered yet.\n"


async def test_metrics_and_text_have_the_same_facts(nursery: trio.Nursery, tmp_path: Path) -> None:
    async with served(tmp_path, nursery) as page:
        metrics = (await page.ask("/metrics"))[2].decode()
        text = (await page.ask("/run.txt"))[2].decode()
    labels = f'{{run="demo",peer="{PEERS[0]}"}}'
    assert f"# TYPE p2ptrain_outer_step gauge\np2ptrain_outer_step{labels} 5\n" in metrics
    assert f"p2ptrain_members{labels} 3\n" in metrics
    assert "203.0.113.7" not in metrics + text
    assert text.startswith("Training (inner 3/10): step 5 of 600\n")
