"""Measure the cost of agreement: what one outer step costs a peer, by the number of members.

The ledgers and signatures are real. There are no faults, every message has the same delay, and the
reduce takes no time. Reports and announcements are gossip. Each is counted once at a receiver, and
MESH times at its sender. A peer that passes it on counts MESH - 1 copies. Gossip reaches all peers
after one delay; in a sparser mesh each further hop would add one.

CPU time is measured at a few peers only. The proposers of the roster and of the commit, which do
the most work, are among these peers. For the other peers, results of signature checks are cached.

With `--recompute`, these few peers recompute what to propose after each report. The difference is
what `ledger/policy/incremental.py` saves.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from p2ptrain.bench.charts import Chart, Line, page
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.values import Commit, Roster
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages import wire
from p2ptrain.ledger.messages.effects import Announce, Decided, Effect, Send
from p2ptrain.ledger.messages.events import Event, Received
from p2ptrain.ledger.messages.messages import Message
from p2ptrain.ledger.messages.peer_reports import Ready, ReduceDone, UpdateHeld
from p2ptrain.ledger.policy.policy import Policy
from p2ptrain.simulation.clock import Clock

DELAY_S = 0.1
MESH = 6
"""Number of neighbours to which gossip sends a message."""

REPORT_BYTES = 300
"""Size of a heartbeat with a Ready or ReduceDone report and its signature."""

TOKENS_PER_BLOCK = 1000


@dataclass(slots=True)
class Meter:
    """Messages, bytes and CPU time of one peer."""

    received: int = 0
    sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    bytes_passed_on: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one outer step with `members` members.

    `busiest` is the peer with the most bytes. `cpu_voter_s` is the CPU time of a member that does
    not propose. The delays, in one-way message delays, count from the moment when all are ready.
    """

    members: int
    busiest: Meter
    cpu_busiest_s: float
    cpu_voter_s: float
    commit_delays: float
    everywhere_delays: float


class RecomputingLedger(Ledger):
    """A ledger that recomputes what to propose after each report."""

    def _policy(self, now: float) -> Policy:
        policy = super()._policy(now)
        policy.tally = None
        return policy


@dataclass(slots=True)
class Scale:
    """One simulated outer step.

    All peers receive Ready reports, since voters do not rely on the proposer for them (S11). Only
    the `watched` peers receive all other reports too, and check every signature themselves.
    """

    rules: Rules
    identities: dict[PeerId, Identity]
    recompute: bool = False
    clock: Clock = field(default_factory=Clock)
    ledgers: dict[PeerId, Ledger] = field(default_factory=dict)
    meters: dict[PeerId, Meter] = field(default_factory=dict)
    watched: tuple[PeerId, ...] = ()
    committed_at: list[float] = field(default_factory=list)
    checked: dict[tuple[PeerId, bytes, bytes], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        founders = self.rules.founders
        self.watched = tuple(dict.fromkeys(founders[index % len(founders)] for index in (1, 2, 3)))
        for peer in founders:
            is_watched = peer in self.watched
            check = verify if is_watched else self._check_once
            kind = RecomputingLedger if self.recompute and is_watched else Ledger
            self.ledgers[peer] = kind(self.rules, peer, self.identities[peer].sign, check)
            self.meters[peer] = Meter()

    def run(self) -> None:
        """Report all peers ready, and run until every peer has the commit."""
        for peer in self.rules.founders:
            blocks = len(self.ledgers[peer].state.leases[peer])
            self._report(Ready(peer, 0, blocks * TOKENS_PER_BLOCK, blocks))
        while len(self.committed_at) < len(self.ledgers):
            assert self.clock.step(), "no further actions are planned"

    def _check_once(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        key = (peer, message, signature)
        if key not in self.checked:
            self.checked[key] = verify(peer, message, signature)
        return self.checked[key]

    # ── events and effects ───────────────────────────────────────────────────────────────────────

    def _report(self, report: Ready | ReduceDone) -> None:
        self._tell(report.peer, (report,))
        self._count_sent(report.peer, REPORT_BYTES, MESH)
        for other in self.ledgers:
            if other != report.peer:
                self._count_received(other, REPORT_BYTES)
                self._pass_on(other, REPORT_BYTES)
        told = self.ledgers if isinstance(report, Ready) else self.watched
        for other in told:
            if other != report.peer:
                self.clock.after(DELAY_S, partial(self._tell, other, (report,)))

    def _receive(self, sender: PeerId, receiver: PeerId, data: bytes) -> None:
        self._count_received(receiver, len(data))
        started = time.process_time()
        message = wire.decode(data)
        self.meters[receiver].cpu_s += time.process_time() - started
        self._tell(receiver, (Received(sender, message),))

    def _tell(self, peer: PeerId, events: Iterable[Event]) -> None:
        ledger = self.ledgers[peer]
        started = time.process_time()
        effects = [effect for event in events for effect in ledger.handle(event, self.clock.now)]
        self.meters[peer].cpu_s += time.process_time() - started
        spoken: dict[int, bytes] = {}
        for effect in effects:
            self._carry_out(peer, effect, spoken)

    def _carry_out(self, peer: PeerId, effect: Effect, spoken: dict[int, bytes]) -> None:
        match effect:
            case Send(to, message):
                data = self._spell(peer, message, spoken)
                self._count_sent(peer, len(data), 1)
                self.clock.after(DELAY_S, partial(self._receive, peer, to, data))
            case Announce(message):
                data = self._spell(peer, message, spoken)
                self._count_sent(peer, len(data), min(MESH, len(self.ledgers) - 1))
                for other in self.ledgers:
                    if other != peer:
                        self._pass_on(other, len(data))
                        self.clock.after(DELAY_S, partial(self._receive, peer, other, data))
            case Decided(certified):
                self._decided(peer, certified.entry.value)
            case _:
                pass

    def _spell(self, peer: PeerId, message: Message, spoken: dict[int, bytes]) -> bytes:
        """Return the encoded message. A message to several peers is encoded once."""
        if id(message) not in spoken:
            started = time.process_time()
            spoken[id(message)] = wire.encode(message)
            self.meters[peer].cpu_s += time.process_time() - started
        return spoken[id(message)]

    def _decided(self, peer: PeerId, value: object) -> None:
        if isinstance(value, Commit):
            self.committed_at.append(self.clock.now)
        elif isinstance(value, Roster):
            update = Digest(hashlib.sha256(b"update").hexdigest())
            done = ReduceDone(peer, value.step, value.attempt, update)
            self.clock.after(0.0, partial(self._tell, peer, (UpdateHeld(update),)))
            self.clock.after(0.0, partial(self._report, done))

    def _pass_on(self, peer: PeerId, size: int) -> None:
        self.meters[peer].sent += MESH - 1
        self.meters[peer].bytes_sent += (MESH - 1) * size
        self.meters[peer].bytes_passed_on += (MESH - 1) * size

    def _count_sent(self, peer: PeerId, size: int, copies: int) -> None:
        self.meters[peer].sent += copies
        self.meters[peer].bytes_sent += copies * size

    def _count_received(self, peer: PeerId, size: int) -> None:
        self.meters[peer].received += 1
        self.meters[peer].bytes_received += size


def measure(members: int, *, recompute: bool = False) -> Cost:
    """Measure one outer step with this number of members."""
    identities = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(members)]
    rules = Rules(
        run=RunId(hashlib.sha256(b"scale").hexdigest()),
        founders=tuple(identity.peer for identity in identities),
        outer_steps=1,
        blocks=members,
        blocks_per_lease=1,
        tokens_per_block=TOKENS_PER_BLOCK,
    )
    scale = Scale(rules, {identity.peer: identity for identity in identities}, recompute)
    scale.run()
    meters = scale.meters
    cpu = [meters[peer].cpu_s for peer in scale.watched]
    return Cost(
        members=members,
        busiest=max(meters.values(), key=lambda meter: meter.bytes_received + meter.bytes_sent),
        cpu_busiest_s=max(cpu),
        cpu_voter_s=meters[scale.watched[-1]].cpu_s,
        commit_delays=round(min(scale.committed_at) / DELAY_S, 3),
        everywhere_delays=round(max(scale.committed_at) / DELAY_S, 3),
    )


HEAD = """# The ledger's cost by the number of members

One outer step without faults: a roster and a commit, real ledgers and Ed25519 signatures, one-way
delays of {delay:g} ms, a reduce that takes no time. Messages, bytes and CPU are those of the
busiest peer; delays count from the moment when all are ready. Made by `scripts/ledger_scale`;
`scripts/research/ledger_scale.py` explains what is counted, and how gossip is counted.

| members | received | MB received | MB sent | as gossip | CPU | voter's CPU | commit | everywhere |
|---|---|---|---|---|---|---|---|---|"""


def row(cost: Cost) -> str:
    busiest = cost.busiest
    parts = (
        f"{cost.members}",
        f"{busiest.received}",
        f"{busiest.bytes_received / 1e6:.2f}",
        f"{busiest.bytes_sent / 1e6:.2f}",
        f"{busiest.bytes_passed_on / 1e6:.2f}",
        f"{cost.cpu_busiest_s * 1e3:.1f} ms",
        f"{cost.cpu_voter_s * 1e3:.1f} ms",
        f"{cost.commit_delays:g} delays",
        f"{cost.everywhere_delays:g} delays",
    )
    return f"| {' | '.join(parts)} |"


def picture(costs: Sequence[Cost]) -> str:
    """Return an SVG plot of messages, bytes, CPU and time by the number of members."""

    def line(value: Callable[[Cost], float]) -> Line:
        return [(cost.members, value(cost)) for cost in costs]

    messages = {"received": line(lambda cost: cost.busiest.received)}
    bytes_by_way = {
        "received": line(lambda cost: cost.busiest.bytes_received / 1e6),
        "sent": line(lambda cost: cost.busiest.bytes_sent / 1e6),
        "gossip passed on": line(lambda cost: cost.busiest.bytes_passed_on / 1e6),
    }
    cpu = {
        "a proposer": line(lambda cost: cost.cpu_busiest_s * 1e3),
        "a voter": line(lambda cost: cost.cpu_voter_s * 1e3),
    }
    delays = {
        "to the commit": line(lambda cost: cost.commit_delays),
        "until all have it": line(lambda cost: cost.everywhere_delays),
    }
    marks = [cost.members for cost in costs]
    charts = [
        Chart("messages at the busiest peer", "members", messages, marks=marks),
        Chart("MB at the busiest peer", "members", bytes_by_way, marks=marks),
        Chart("CPU in ms", "members", cpu, marks=marks),
        Chart("one-way delays", "members", delays, scale_up="linear", marks=marks, from_zero=True),
    ]
    return page(charts, "One outer step without faults: real ledgers and signatures, virtual time")


def main(arguments: list[str]) -> None:
    """Print the page, or with --svg the plot, for these numbers of members."""
    parser = argparse.ArgumentParser(
        prog="scripts/ledger_scale", description="Measure the cost of agreeing on one outer step."
    )
    parser.add_argument(
        "members",
        nargs="*",
        type=int,
        help="numbers of members, such as 10 100; by default 10 to 1000",
    )
    parser.add_argument("--svg", action="store_true", help="print the picture instead of the page")
    parser.add_argument(
        "--recompute", action="store_true", help="recompute the proposal after each report"
    )
    given = parser.parse_args(arguments)
    out, sizes = sys.stdout, given.members or [10, 30, 100, 300, 1000]
    if given.svg:
        out.write(picture([measure(members, recompute=given.recompute) for members in sizes]))
        return
    out.write(HEAD.format(delay=DELAY_S * 1e3) + "\n")
    for members in sizes:
        out.write(row(measure(members, recompute=given.recompute)) + "\n")
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
