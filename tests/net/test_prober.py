"""Whether a libp2p peer answers at an address."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from p2ptrain.net import prober
from p2ptrain.net.addresses import parse
from p2ptrain.net.faults import DialFailed
from p2ptrain.net.names import Resolver


async def test_answer_at_the_very_end_of_the_time_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine may finish a connection only after its deadline."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    clock = iter([0.0, 7.0])
    monkeypatch.setattr(prober, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(DialFailed) as caught:
        await prober.probe(parse(f"/ip4/127.0.0.1/tcp/{port}"), Resolver(1), deadline_s=5.0)
    assert caught.value.code == "NET-SILENT"
    await listener.aclose()
