"""`p2ptrain watch` prints one line for each outer step, and the samples; in JSON, all facts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from p2ptrain.cli.commands.watching.watch import Printer, config_of
from p2ptrain.errors import ConfigError
from p2ptrain.identity import Identity
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.values import Participant
from p2ptrain.names import peer_name
from p2ptrain.peers.outside.telemetry import TelemetryRecord
from p2ptrain.peers.outside.watched_ledger import WatchedStep
from p2ptrain.run.outside_facts import Public, SamplePrompts

ANN = Identity.from_seed(b"a" * 32).peer
RUN = RunId("1" * 64)


@dataclass
class Seen:
    """As much of `Watched` as the printer uses."""

    run: Any
    ledger: Any
    steps: list[WatchedStep]


def step(number: int, **changes: Any) -> WatchedStep:
    usual: dict[str, Any] = {
        "step": number,
        "height": 2 * number,
        "head": Digest("2" * 64),
        "skipped": False,
        "attempt": 1,
        "members": (ANN,),
        "participants": (Participant(ANN, 16, 1),),
        "tokens_total": 16 * number,
    }
    return WatchedStep(**(usual | changes))


def record(number: int, loss: float) -> TelemetryRecord:
    head = Digest("2" * 64)
    return TelemetryRecord(RUN, number, 2 * number, head, 16 * number, 1, 1, loss, 2.36, number)


def seen(*steps: WatchedStep, names: bool = True) -> Any:
    manifest = SimpleNamespace(
        outer=SimpleNamespace(steps=600),
        public=Public(telemetry=True, names=names),
        samples=SamplePrompts(("import ",), 2),
    )
    state = SimpleNamespace(step=steps[-1].step if steps else 0, height=7)
    ledger = SimpleNamespace(state=state, steps={each.step: each for each in steps})
    return Seen(SimpleNamespace(id=RUN, manifest=manifest), ledger, list(steps))


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    return lambda: capsys.readouterr().out.splitlines()


def test_newest_past_step_and_each_new_step_are_printed(lines: Any) -> None:
    printer = Printer(None, once=False, as_json=False)
    told = step(3, losses={ANN: record(3, 2.38)}, samples={0: (ANN, "os\n\nimport sys")})
    assert printer.show(seen(step(1), step(2), told))
    assert lines() == [
        "step 3/600  loss 2.38 (held out 2.36)  1 peer  16 tokens",
        f"  written by the model, {peer_name(ANN)} (…{ANN[-6:]}): import │os import sys",
    ]
    assert printer.show(seen(told, step(4, skipped=True, participants=())))
    assert lines()[-1].startswith("step 4/600  skipped")


def test_steps_from_a_given_one_on_are_printed(lines: Any) -> None:
    Printer(2, once=False, as_json=False).show(seen(step(1), step(2), step(3)))
    assert [line.split()[1] for line in lines()] == ["2/600", "3/600"]


def test_once_ends_after_the_newest_step(lines: Any) -> None:
    printer = Printer(None, once=True, as_json=False)
    nothing: Any = Seen(seen(step(1)).run, seen(step(1)).ledger, [])
    assert printer.show(nothing)
    assert not printer.show(seen(step(1), step(2)))
    assert [line.split()[1] for line in lines()] == ["2/600"]


@pytest.mark.parametrize("names", [True, False])
def test_json_has_all_facts_and_names_only_if_they_are_public(lines: Any, *, names: bool) -> None:
    told = step(3, losses={ANN: record(3, 2.38)}, samples={0: (ANN, "os")})
    Printer(None, once=False, as_json=True).show(seen(told, names=names))
    (line,) = lines()
    facts = json.loads(line)
    peers = [{"peer": ANN, "name": peer_name(ANN), "tokens": 16}]
    assert facts["peers"] == (peers if names else [])
    assert (PeerId(ANN) in line) == names
    assert (facts["loss"], facts["held_out"], facts["held_out_step"]) == (2.38, 2.36, 3)
    assert (facts["step"], facts["tokens"], facts["tokens_total"], facts["records"]) == (
        3,
        16,
        48,
        1,
    )
    assert [each["text"] for each in facts["samples"]] == ["os"]


def test_watch_needs_an_invitation_or_an_address() -> None:
    with pytest.raises(ConfigError, match="neither an invitation nor an address"):
        config_of(None, None, None, None)
    address = f"/ip4/203.0.113.7/tcp/4201/p2p/{ANN}"
    config = config_of(None, [address], RUN, None)
    assert (config.bootstrap, config.run, config.observes) == ((address,), RUN, True)
