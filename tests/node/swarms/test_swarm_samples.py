"""A member lets its trainer write with the certified θ, and the page of another node shows it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import trio

from p2ptrain.export.source import ThetaOfSnapshot
from p2ptrain.node.outer_state.snapshot_choice import certified_starts
from p2ptrain.observe.series import SampleRow, SeriesReader, SeriesUnavailable
from p2ptrain.peers.outside.sample_text import TOKENS_MAX
from p2ptrain.run.outside_facts import SamplePrompts
from p2ptrain.store import StoreReader
from p2ptrain.testing.fake_trainer import token_of
from p2ptrain.testing.published import MODEL, WORDS, policy
from p2ptrain.web.app import make_app
from p2ptrain.web.hub import Hub
from p2ptrain.web.listener import bind, serve
from p2ptrain.web.page_file import load_page
from tests.node.swarm import Swarm, SwarmNode, swarm
from tests.web.serving import parsed

PROMPTS = SamplePrompts(("once upon a", "ba be"), 2)


def samples_of(node: SwarmNode) -> list[SampleRow]:
    try:
        with SeriesReader(node.home.series) as reader:
            return list(reader.samples())
    except SeriesUnavailable:
        return []


async def page_of(node: SwarmNode, *paths: str) -> list[Any]:
    """Serve the page of `node`, and return its answers for these paths."""
    hub, found = Hub(node.home), list[Any]()
    with bind("127.0.0.1", 0) as sock:
        async with trio.open_nursery() as nursery:
            app = make_app(hub, node.home, load_page(), "token")
            nursery.start_soon(partial(serve, app, sock))
            port = int(sock.getsockname()[1])
            for path in paths:
                head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(head.encode())
                    answer = b"".join([piece async for piece in stream])
                found.append(json.loads(parsed(answer)[2]))
            nursery.cancel_scope.cancel()
    hub.history.close()
    return found


def is_certified(s: Swarm, step: int) -> bool:
    newest = s.seed.context.ledger.snapshot.snapshot
    return newest is not None and newest.step >= step


def expected(s: Swarm, step: int) -> str:
    """Return the last word that the fake model writes with the certified θ of this outer step."""
    context, numel = s.seed.context, s.seed.context.layout.numel
    known = certified_starts(context.ledger.core, context.manifest.genesis)
    (digest,) = (each.digest for each in known if each.step == step)
    theta = ThetaOfSnapshot(StoreReader(s.seed.home.store), digest, numel)
    (piece,) = theta.pieces(numel)
    return WORDS[token_of(piece, MODEL.vocab)]


async def test_sample_of_the_certified_weights_reaches_the_page_of_another_node(
    tmp_path: Path,
) -> None:
    rules = policy(participants_min=1, snapshot_every=2)
    async with swarm(tmp_path, nodes=("ann",), steps=1000, rules=rules, samples=PROMPTS) as s:
        while not samples_of(s.seed):
            await s.stand_still()
        kept = await s.until(lambda: samples_of(s.seed) if len(samples_of(s.seed)) > 1 else [])
        step = kept[0].step
        while not is_certified(s, step):
            await s.stand_still()
        state, told = await page_of(s.seed, "/api/v1/state", "/api/v1/samples")
        word = expected(s, step)
    assert step % 2 == 0
    for row, last in zip(kept[:2], ("a", "be"), strict=True):
        assert (row.step, row.peer) == (step, s["ann"].peer)
        assert row.text.split() == [*[last] * (TOKENS_MAX - 1), word]
    assert told["prompts"] == list(PROMPTS.prompts)
    assert [each["text"].split()[-1] for each in told["samples"][:2]] == [word, word]
    assert {each["peer"] for each in told["samples"]} == {s["ann"].peer}
    assert state["status"]["outer_step"] >= step
