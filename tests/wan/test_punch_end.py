"""The program that measures hole punching works on loopback, without the emulator."""

from __future__ import annotations

import threading
from functools import partial

from p2ptrain.testing.network_namespaces import ports
from tests.wan.harness import punch_end, punching

HOST, TRIES, STREAMS = "127.0.0.1", 2, 3


def test_ann_and_bob_connect_in_each_try() -> None:
    port, _ = ports(2)
    results: dict[str, list[punch_end.Try]] = {}

    def play(name: str) -> None:
        results[name] = list(punch_end.play(name, TRIES, STREAMS, HOST, port))

    listening = threading.Event()
    meeting = threading.Thread(target=partial(punch_end.meet, HOST, port, listening.set))
    meeting.start()
    assert listening.wait(punch_end.WAIT_S)
    threads = [threading.Thread(target=play, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in (*threads, meeting):
        thread.join(punch_end.WAIT_S)
    for name in ("ann", "bob"):
        assert [(each.good, each.faults) for each in results[name]] == [(STREAMS, ())] * TRIES


def test_row_of_the_table_counts_only_complete_tries() -> None:
    lines: list[dict[str, object]] = [
        {"good": 4, "of": 4, "ms": 100.0, "whole_ms": 500.0, "faults": []},
        {"good": 4, "of": 4, "ms": 140.0, "whole_ms": 600.0, "faults": []},
        {"good": 3, "of": 4, "ms": 9.0, "whole_ms": 9.0, "faults": ["no hole"]},
    ]
    found = punching.summary("cone:sym", lines)
    assert punching.row(found) == "| cone × sym | 2 of 3 | 120 (140) | 550 (600) |"
    assert found["faults"] == ["no hole"]
