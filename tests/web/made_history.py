"""A made history of a run, as the bodies of the page's API: 24 peers and 600 outer steps.

Nothing here was measured. The numbers only have plausible sizes, so that the page can be looked at
and tested without a run. The same seed always gives the same history.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name

Row = dict[str, Any]

STEP_S = 94.0
TOKENS_OF_PEER = 131_072
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PROMPTS = ("Once upon a time", "The capital of France is", "def fibonacci(n):")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "\u202egnp.exe\u202c \u2066hidden\u2069",
    "</script><script>document.title='owned'</script>",
    "a\u0300" * 400,
    "line\nbreak\x00\x1b[31mred\x07",
    "W" * 5000,
)
"""Names and texts of a hostile peer: markup, reversed text, control characters and long texts."""


@dataclass
class Peer:
    """A made peer. `speed` is relative to the median peer's."""

    id: str
    name: str
    speed: float
    joins: int
    leaves: int
    device: str
    path: str
    uplink: float
    role: str = "learner"


@dataclass
class History:
    """The history. `now` is the time of the newest step, in Unix seconds."""

    now: float
    peers: list[Peer]
    steps: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    serial: int = 1

    def named(self, peer: str) -> str:
        return next((each.name for each in self.peers if each.id == peer), "")


def made(now: float, *, peers: int = 24, steps: int = 600, hostile: bool = False) -> History:
    """Return a history whose newest outer step ended at `now`."""
    chance = random.Random(26)
    history = History(now, [_peer(chance, number, steps) for number in range(peers)])
    if hostile:
        for peer, name in zip(history.peers, HOSTILE, strict=False):
            peer.name = name
    history.events.append(_event(history, 0, "warning", "", "This node started to write a series."))
    for step in range(1, steps + 1):
        advance(history, chance, step, now - (steps - step) * STEP_S)
    if hostile:
        for text in HOSTILE:
            history.events.append(_event(history, steps, "warning", history.peers[0].id, text))
            history.samples.append(_sample(steps, len(history.samples) % 3, history, text))
    return history


def advance(history: History, chance: random.Random, step: int, time: float) -> Row:
    """Append outer step `step`, which ended at `time`. Return it as the stream sends it."""
    present = [each for each in history.peers if each.joins <= step <= each.leaves]
    skipped = chance.random() < 0.008
    slowest = max(_train_ms(chance, each) for each in present)
    rows = [_row(history, chance, each, step, slowest, skipped) for each in present]
    tokens = sum(row["tokens"] for row in rows)
    before = history.steps[-1] if history.steps else {"tokens_total": 0, "time": time - STEP_S}
    row = {
        "step": step,
        "time": round(time + chance.uniform(-6, 6), 1),
        "attempt": 1 if chance.random() > 0.03 else 2,
        "skipped": int(skipped),
        "members": len(present) + 2,
        "participants": 0 if skipped else len(present),
        "tokens": tokens,
        "tokens_total": before["tokens_total"] + tokens,
        "loss": round(_loss(step) + chance.gauss(0, 0.012), 4),
        "held_out": round(_loss(step) + 0.03, 4) if step % 5 == 0 else None,
        "learning_rate": _learning_rate(step),
        "gradient_norm": round(0.6 + 1.8 * math.exp(-step / 60) + chance.gauss(0, 0.05), 4),
        "exchange_ms": rows[0]["exchange_ms"],
        "bytes_up": rows[0]["bytes_up"],
        "bytes_down": rows[0]["bytes_down"],
    }
    history.steps.append(row)
    history.rows = (history.rows + rows)[-20 * len(history.peers) :]
    _tell(history, row, step)
    if step % 25 == 0:
        for prompt, text in enumerate(_continuations(step)):
            history.samples.append(_sample(step, prompt, history, text))
    return {"step": row, "peers": rows}


def _peer(chance: random.Random, number: int, steps: int) -> Peer:
    digits = "".join(chance.choice(ALPHABET) for _ in range(44))
    identity = f"12D3KooW{digits}"
    joins = 1 if number < 9 else chance.randrange(2, max(3, steps * 3 // 4))
    leaves = chance.randrange(joins, steps) if number in (7, 15) else 1 << 30
    return Peer(
        id=identity,
        name=peer_name(PeerId(identity)),
        speed=chance.choice((0.55, 0.8, 1.0, 1.0, 1.1, 1.3)),
        joins=joins,
        leaves=leaves,
        device=chance.choice(("cuda", "cuda", "cuda", "cpu", "mps")),
        path=chance.choice(("direct", "direct", "punched", "punched", "relayed")),
        uplink=chance.choice((18e6, 40e6, 95e6, 210e6)),
        role="voter" if number < 5 else "learner",
    )


def _train_ms(chance: random.Random, peer: Peer) -> int:
    return int(52_000 / peer.speed * chance.uniform(0.96, 1.08))


def _row(
    history: History, chance: random.Random, peer: Peer, step: int, slowest: int, skipped: bool
) -> Row:
    train = min(slowest, _train_ms(chance, peer))
    sent = 5_400_000
    exchange = int(8 * sent / min(peer.uplink, 60e6) * 1e3 * chance.uniform(1.0, 1.5)) + 900
    left = int(STEP_S * 1e3) - slowest - exchange - 2600
    absent = chance.random() < 0.015
    return {
        "step": step,
        "peer": peer.id,
        "name": peer.name,
        "tokens": 0 if skipped or absent else TOKENS_OF_PEER,
        "train_ms": train,
        "data_wait_ms": int(train * chance.uniform(0.002, 0.03)),
        "wait_ms": max(0, slowest - train) + max(0, left) // 3,
        "exchange_ms": 0 if absent else exchange,
        "fetch_ms": 3200 if absent else 0,
        "apply_ms": int(chance.uniform(1200, 2400)),
        "bytes_up": 0 if absent else int(sent * chance.uniform(1.0, 1.03)),
        "bytes_down": int(sent * chance.uniform(1.0, 1.03)),
        "loss": round(_loss(step) + chance.gauss(0, 0.03), 4),
        "gradient_norm": round(0.6 + 1.8 * math.exp(-step / 60) + chance.gauss(0, 0.1), 4),
        "cosine": round(min(0.99, max(0.1, chance.gauss(0.62, 0.05))), 4),
        "quantisation_error": round(abs(chance.gauss(0.006, 0.001)), 5),
        "mfu": round(0.31 * min(1.0, peer.speed) * chance.uniform(0.95, 1.0), 3),
        "device": peer.device,
        "version": "0.9.0",
        "path": peer.path,
    }


def _loss(step: int) -> float:
    return 2.62 + 4.4 * math.exp(-step / 45) + 1.1 * math.exp(-step / 320)


def _learning_rate(step: int) -> float:
    warm = min(1.0, step / 20)
    return round(4e-4 * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / 800))), 8)


def _tell(history: History, row: Row, step: int) -> None:
    for peer in history.peers:
        if peer.joins == step and step > 1:
            history.events.append(
                _event(history, step, "join", peer.id, f"{peer.name} joined as a learner.")
            )
        if peer.leaves == step:
            words = f"{peer.name} left after its last exchange."
            history.events.append(_event(history, step, "leave", peer.id, words))
    if row["skipped"]:
        words = f"Members skipped outer step {step}: three attempts failed."
        history.events.append(_event(history, step, "skip", "", words))
    elif row["attempt"] > 1:
        words = f"The exchange of outer step {step} succeeded at its second attempt."
        history.events.append(_event(history, step, "retry", "", words))
    if step == 320:
        words = "An amendment took effect: the learning rate is 0.0004 from outer step 320."
        history.events.append(_event(history, step, "amendment", "", words))
    if step % 50 == 0:
        words = f"Members made the snapshot of outer step {step}."
        history.events.append(_event(history, step, "snapshot", "", words))


def _event(history: History, step: int, kind: str, peer: str, text: str) -> Row:
    time = history.steps[-1]["time"] if history.steps else history.now - 600 * STEP_S
    number = len(history.events) + 1
    name = history.named(peer)
    return {
        "id": number,
        "time": time,
        "step": step,
        "kind": kind,
        "peer": peer,
        "name": name,
        "text": text,
    }


def _sample(step: int, prompt: int, history: History, text: str) -> Row:
    peer = history.peers[step % 5]
    return {"step": step, "prompt": prompt, "peer": peer.id, "text": text}


def _continuations(step: int) -> tuple[str, str, str]:
    if step < 100:
        return (" the the of and the of a", " the of in the and", " the = = the ( (")
    if step < 300:
        return (
            ", there was a man who was a man of the house and he was not to be",
            " the city of the city, and the most of the people of the world",
            "\n    return n\n    return n\n    return n",
        )
    return (
        ", there was a small house at the edge of the forest. An old woman lived there with her"
        " three daughters, and every morning they walked to the river.",
        " Paris, which lies on the Seine. It has been the capital since the tenth century.",
        "\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)",
    )


def run_of(history: History) -> Mapping[str, Any]:
    return {
        "id": "b3" * 32,
        "name": "made-up-150m",
        "organiser": history.peers[0].id,
        "model": "Llama, 151 M parameters, context 1024",
        "steps": 800,
        "description": "A made history: nothing on this page was measured.",
        "licence": "Apache-2.0",
        "contact": "run@example.org",
        "public_weights": False,
    }
