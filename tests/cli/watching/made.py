"""A made status and a made series, from which tests of the terminal's commands draw their facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from p2ptrain.identity import Identity
from p2ptrain.names import peer_name
from p2ptrain.observe.series import EventRow, PeerStepRow, StepRow
from p2ptrain.observe.series.writer import SeriesWriter
from p2ptrain.observe.status import MemberStatus, NodeStatus

NOW = 1_800_000_000.0
PEERS = tuple(Identity.from_seed(bytes([number]) * 32).peer for number in range(1, 40))
STEPS = 30
STEP_S = 40.0


def member(number: int, *, health: str = "green", state: str = "") -> MemberStatus:
    peer = PEERS[number]
    return MemberStatus(
        peer,
        peer_name(peer),
        "voter",
        health,
        state or "training (inner 37/100)",
        tokens=1000 * number,
        tokens_per_s=9000.0 + number,
        heard_s_ago=None if number == 0 else float(number),
    )


def made_status(members: int = 3) -> NodeStatus:
    """Return the status of the first of `members` peers."""
    return NodeStatus(
        peer=PEERS[0],
        peer_name=peer_name(PEERS[0]),
        state="training (inner 37/100)",
        state_name="training",
        run="ab" * 32,
        run_name="metagene-mini",
        outer_step=STEPS,
        outer_steps=60,
        tokens=4_600_000,
        tokens_total=9_700_000,
        loss=2.381,
        validation_loss=2.36,
        members=tuple(map(member, range(members))),
        uptime_s=7500.0,
    )


def waiting(status: NodeStatus, *numbers: int) -> NodeStatus:
    """Return the status while the run waits for the peers with these numbers."""
    peers = [PEERS[number] for number in numbers]
    wait = {
        "for": "members are still training",
        "peers": peers,
        "names": [peer_name(peer) for peer in peers],
        "since": NOW - 34,
        "until": NOW + 20,
        "then": "then the members exchange without those that are late",
        "suspect": "the likely cause is that one",
    }
    return replace(status, waiting=wait)


def made_steps() -> list[StepRow]:
    return [
        StepRow(
            step,
            time=NOW - STEP_S * (STEPS - step),
            attempt=0,
            skipped=0,
            members=3,
            participants=3,
            tokens=3000,
            tokens_total=3000 * step,
            loss=6.0 - 0.1 * step,
            held_out=6.1 - 0.1 * step,
        )
        for step in range(1, STEPS + 1)
    ]


def made_peer_steps(peers: int = 3) -> list[PeerStepRow]:
    rows = []
    for step in range(1, STEPS + 1):
        for number, peer in enumerate(PEERS[:peers]):
            slow = PeerStepRow(step, peer, 1000, train_ms=9000, wait_ms=0, exchange_ms=3000)
            fast = replace(slow, train_ms=3000, wait_ms=6000)
            rows.append(slow if number == 0 else fast)
    return rows


def made_events() -> list[EventRow]:
    texts = ["calm-fox joined the run", "step 4 was skipped", "calm-fox left the run"]
    kinds = ["join", "skip", "leave"]
    return [
        EventRow(NOW + number, number, kind, PEERS[1], text)
        for number, (kind, text) in enumerate(zip(kinds, texts, strict=True))
    ]


def write_series(home: Path, run: str) -> None:
    """Write the made series to a home."""
    writer = SeriesWriter(home / "series.db", run)
    writer.write([*made_steps(), *made_peer_steps(), *made_events()])
    writer.close()
