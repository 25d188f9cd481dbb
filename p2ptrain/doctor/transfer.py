"""Check the rate of bulk data to and from a member. Only a bounded amount of data is sent."""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.dataplane import (
    DialHandle,
    Endpoint,
    PeerSocket,
    ProbeResult,
    dial,
    probe,
    probe_upload,
)
from p2ptrain.dataplane.probing import PURPOSE
from p2ptrain.dataplane.upload_probing import PURPOSE as UPLOAD_PURPOSE
from p2ptrain.doctor.finding import Finding, Tell, good, warning
from p2ptrain.doctor.subject import Learned
from p2ptrain.doctor.visit import Visit
from p2ptrain.errors import P2PTrainError, PeerError, PeerUnreachable, RemoteProtocolError
from p2ptrain.names import label
from p2ptrain.node.state.threads import in_thread

NAME = "transfer rate"
DIAL_S = 5.0

MBIT_MIN = 5.0
"""Rate in Mbit/s below which an exchange of even a small model takes minutes."""


@dataclass(frozen=True, slots=True)
class RateFacts:
    """Rates in bytes per second; None if the member was busy or refused."""

    peer: str
    down: float | None = None
    up: float | None = None
    round_trip_s: float = 0.0


# ── judgements ───────────────────────────────────────────────────────────────────────────────────


def judge_rates(facts: RateFacts) -> Finding:
    if facts.down is None and facts.up is None:
        return warning(
            NAME,
            f"not measured: {facts.peer} was busy, or has been asked less than a minute ago",
            fix="run this command again in a minute",
        )
    delay = f", {facts.round_trip_s * 1000:.0f} ms there and back"
    said = f"{_mbit(facts.down)} down, {_mbit(facts.up)} up, with {facts.peer}{delay}"
    known = [rate for rate in (facts.down, facts.up) if rate is not None]
    if min(known) * 8 / 1e6 >= MBIT_MIN:
        return good(NAME, said)
    return warning(
        NAME,
        f"{said}: exchanges will be slow, and the others may go on without this node",
        fix="use a cable instead of wireless, stop other downloads, or ask the organiser whether "
        "the run suits your connection",
        code="SYNC-SLOW",
    )


def _mbit(rate: float | None) -> str:
    if rate is None:
        return "unknown"
    mbit = rate * 8 / 1e6
    return f"{mbit:,.0f} Mbit/s" if mbit >= 10 else f"{mbit:.1f} Mbit/s"


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


async def transfer(visit: Visit, learned: Learned, tell: Tell) -> None:
    """Measure how fast bulk data travels from the peer to this machine, and back."""
    try:
        facts = await _measured(visit)
    except (PeerError, RemoteProtocolError) as exc:
        tell(_failed(visit, exc))
        return
    learned.down_bytes_per_s, learned.up_bytes_per_s = facts.down, facts.up
    tell(judge_rates(facts))


def _failed(visit: Visit, exc: P2PTrainError) -> Finding:
    return warning(
        NAME,
        f"not measured: {label(visit.witnesses[0].peer)} did not exchange bulk data: {exc.what}",
        fix="ask the peer's owner whether its data port (--data-listen) can be reached; other "
        "members may still work",
        code=exc.code,
    )


async def _measured(visit: Visit) -> RateFacts:
    endpoint = visit.witnesses[0].endpoint
    down = await _probed(visit, endpoint, PURPOSE)
    up: float | None
    try:
        up = _rate(await _probed(visit, endpoint, UPLOAD_PURPOSE))
    except PeerUnreachable:
        up = None  # The member runs an earlier version, which does not serve this purpose.
    return RateFacts(label(visit.witnesses[0].peer), _rate(down), up, down.round_trip_s)


def _rate(result: ProbeResult) -> float | None:
    return result.count_bytes / result.seconds if result.count_bytes else None


async def _probed(visit: Visit, endpoint: Endpoint, purpose: str) -> ProbeResult:
    dialling = DialHandle()
    measure = probe if purpose == PURPOSE else probe_upload

    def work() -> ProbeResult:
        connection: PeerSocket = dial(
            visit.credentials,
            endpoint,
            {"purpose": purpose},
            deadline_s=DIAL_S,
            encrypted=visit.run.manifest.encrypted,
            dialling=dialling,
        )
        try:
            return measure(connection)
        finally:
            connection.close()

    return await in_thread(work, stop=dialling.give_up)
