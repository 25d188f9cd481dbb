"""Wrappers around a node's objects. They call the node's gate (see `gate`) before and after each
action, so that the harness can stop the node there.

`dress` wraps the logs, the store, the network, θ and m, and the ring's arithmetic. A wrapper passes
the gate and forwards every call. The node's own code is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.canonical import parse
from p2ptrain.ledger.chain.decode_values import certified_from_plain
from p2ptrain.ledger.chain.state import Phase
from p2ptrain.ledger.chain.values import Roster, Value
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.messages.messages import (
    MESSAGE_BYTES_MAX,
    Accept,
    Message,
    Outcome,
    Prepare,
    Promise,
    Propose,
)
from p2ptrain.ledger.messages.wire import decode
from p2ptrain.ledger.paxos.acceptor import restored_acceptors
from p2ptrain.node.state.context import Context
from p2ptrain.peers import heartbeat_delta
from p2ptrain.peers.heartbeat import Heartbeat
from p2ptrain.peers.protocol_names import LEDGER_PROTOCOL, heartbeat_topic, ledger_topic
from p2ptrain.ring.arithmetic import Arithmetic
from tests.chaos.harness.gate import Gate, Leads


def dress(gate: Gate, context: Context) -> Context:
    """Return the context with wrappers in it. The node then stops at the points that the harness
    chooses.
    """
    ledger = context.ledger.core
    port: Any = context.ledger
    port.votes = Votes(port.votes, gate, ledger)
    port.chain_log = Chain(port.chain_log, gate, ledger)
    outer: Any = context.outer
    outer.vectors = Vectors(outer.vectors, gate, ledger)
    _dress_arithmetic(gate, ledger)
    network: Any = Wires(context.network, gate, context)
    store: Any = Stored(context.store, gate, ledger)
    return replace(context, around=replace(context.around, network=network), store=store)


class StandIn:
    """A wrapper that forwards to `real` every attribute that a subclass does not define."""

    def __init__(self, real: Any, gate: Gate) -> None:
        self._real = real
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __iter__(self) -> Any:
        return iter(self._real)


# which node is the proposer


def leads(ledger: Ledger, height: int, round: int) -> bool:
    """Return whether this node is the proposer of a round, given the current voters."""
    voters = ledger.state.voters
    return voters[(height + round) % len(voters)] == ledger.me


def leads_next(ledger: Ledger) -> bool:
    """Return whether this node proposes the next entry in the first round."""
    return leads(ledger, ledger.state.height + 1, 0)


def led_last(ledger: Ledger) -> bool:
    """Return whether this node proposed the latest entry."""
    certificate = ledger.chain[-1].certificate
    return leads(ledger, certificate.height, certificate.round)


# the logs


class Votes(StandIn):
    """The log of votes."""

    def __init__(self, real: Any, gate: Gate, ledger: Ledger) -> None:
        super().__init__(real, gate)
        self._ledger = ledger

    def append(self, records: Iterable[bytes]) -> None:
        written = list(records)
        acceptor = max(restored_acceptors(written, decided={}).values(), key=lambda it: it.height)
        accepted = acceptor.accepted
        deed = "write-promise" if accepted is None else _vote_for(accepted.entry.value)
        mine = partial(leads, self._ledger, acceptor.height, acceptor.promised)
        with self._gate.passing(deed, mine):
            self._real.append(written)


class Chain(StandIn):
    """The ledger's log."""

    def __init__(self, real: Any, gate: Gate, ledger: Ledger) -> None:
        super().__init__(real, gate)
        self._ledger = ledger

    def append(self, records: Iterable[bytes]) -> None:
        written = list(records)
        last = certified_from_plain(parse(written[-1], bytes_max=MESSAGE_BYTES_MAX))
        mine = partial(leads, self._ledger, last.certificate.height, last.certificate.round)
        with self._gate.passing(f"write-entry-{kind_of(last.entry.value)}", mine):
            self._real.append(written)


def kind_of(value: Value) -> str:
    """Return the kind of entry, as it appears in the names of actions. A Skip ends an outer step,
    so it counts as a commit.
    """
    return "roster" if isinstance(value, Roster) else "commit"


def _vote_for(value: Value) -> str:
    return f"write-vote-{kind_of(value)}"


# the store, and θ and m


class Stored(StandIn):
    """The store: updates, snapshots and the head."""

    def __init__(self, real: Any, gate: Gate, ledger: Ledger) -> None:
        super().__init__(real, gate)
        self._ledger = ledger

    def put_blob(self, kind: str, *rest: Any) -> Any:
        with self._gate.passing(f"write-{kind}", partial(leads_next, self._ledger)):
            return self._real.put_blob(kind, *rest)

    def put_stream(self, kind: str, *rest: Any, **how: Any) -> Any:
        with self._gate.passing(f"write-{kind}", partial(led_last, self._ledger)):
            return self._real.put_stream(kind, *rest, **how)

    def put_head(self, head: Any) -> None:
        with self._gate.passing("write-head", partial(led_last, self._ledger)):
            self._real.put_head(head)


class Vectors(StandIn):
    def __init__(self, real: Any, gate: Gate, ledger: Ledger) -> None:
        super().__init__(real, gate)
        self._ledger = ledger

    def apply(self, *given: Any) -> None:
        with self._gate.passing("apply", partial(led_last, self._ledger)):
            self._real.apply(*given)


Work = Callable[..., None]


def _dress_arithmetic(gate: Gate, ledger: Ledger) -> None:
    """Wrap the methods of the class, since the ring creates its own instances. Call this only
    once.
    """
    turn = partial(leads_next, ledger)

    def gated(deed: str, real: Work) -> Work:
        def work(self: Arithmetic, *given: Any, **more: Any) -> None:
            with gate.passing(deed, turn):
                real(self, *given, **more)

        return work

    dressed: Any = Arithmetic
    dressed.add = gated("scatter", Arithmetic.add)
    dressed.finish = gated("scatter", Arithmetic.finish)
    dressed.accept = gated("gather", Arithmetic.accept)


# the network


class Wires(StandIn):
    """The network. Consensus messages, announcements, and heartbeats with new reports pass the
    gate.
    """

    def __init__(self, real: Any, gate: Gate, context: Context) -> None:
        super().__init__(real, gate)
        self._ledger = context.ledger.core
        self._topics = {ledger_topic(context.run): self._outcome}
        self._topics[heartbeat_topic(context.run)] = self._report
        self._base: heartbeat_delta.FullHeartbeat | None = None
        self._told: dict[str, object] = {}

    async def request(self, peer: PeerId, protocol: str, payload: bytes, **limits: Any) -> Any:
        found = self._consensus(decode(payload)) if protocol == LEDGER_PROTOCOL else None
        if found is None:
            return await self._real.request(peer, protocol, payload, **limits)
        with self._gate.passing(*found):
            return await self._real.request(peer, protocol, payload, **limits)

    async def publish(self, topic: str, payload: bytes) -> None:
        found = self._topics[topic](payload) if topic in self._topics else None
        if found is None:
            await self._real.publish(topic, payload)
            return
        with self._gate.passing(*found):
            await self._real.publish(topic, payload)

    def _consensus(self, message: Message) -> tuple[str, Leads] | None:
        match message:
            case Prepare(height, round):
                name = "prepare"
            case Promise(height, round):
                name = "promise"
            case Propose(round, entry):
                height, name = entry.height, f"propose-{kind_of(entry.value)}"
            case Accept(vote):
                height, round = vote.height, vote.round
                name = f"vote-{self._kind_at(height)}"
            case _:
                return None
        return f"send-{name}", partial(leads, self._ledger, height, round)

    def _kind_at(self, height: int) -> str:
        """Return the kind of the entry that was decided, or is being decided, at `height`."""
        state = self._ledger.state
        if height <= state.height:
            return kind_of(self._ledger.chain[height - 1].entry.value)
        return "commit" if state.phase is Phase.REDUCE else "roster"

    def _outcome(self, payload: bytes) -> tuple[str, Leads] | None:
        message = decode(payload)
        if not isinstance(message, Outcome):
            return None
        where = message.certified.certificate
        mine = partial(leads, self._ledger, where.height, where.round)
        return f"send-outcome-{kind_of(message.certified.entry.value)}", mine

    def _report(self, payload: bytes) -> tuple[str, Leads] | None:
        said = self._in_full(heartbeat_delta.decode_beat(payload))
        for name, report in (("send-done", said.reduce), ("send-ready", said.ready)):
            if report is not None and self._told.get(name) != report:
                self._told[name] = report
                return name, partial(leads_next, self._ledger)
        return None

    def _in_full(self, beat: heartbeat_delta.Beat) -> Heartbeat:
        """Return the full heartbeat. A node sends its own beats in order, so the full heartbeat to
        which a delta refers is known.
        """
        if isinstance(beat, heartbeat_delta.HeartbeatDelta):
            assert self._base is not None
            return heartbeat_delta.full_heartbeat(self._base, beat)
        self._base = beat
        return beat.heartbeat
