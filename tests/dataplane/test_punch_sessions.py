"""Two ends agree to punch over a network that loses, delays and doubles messages; a liar gains
nothing."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import count

import pytest

from p2ptrain.dataplane.candidates import ExternalAddress, Sightings
from p2ptrain.dataplane.punch_messages import (
    PunchAnswer,
    PunchGo,
    PunchMessage,
    PunchOffer,
    PunchRefusal,
    decode,
    encode,
)
from p2ptrain.dataplane.punch_sessions import (
    OFFERS_AT_ONCE,
    SENDS_MAX,
    Effect,
    Failed,
    Gather,
    Punch,
    PunchSessions,
    Send,
    SessionTimes,
)
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId

ANN, BOB, EVE = (Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3))
HOSTS = {ANN: "9.9.9.9", BOB: "8.8.8.8", EVE: "7.7.7.7"}
VICTIM = "1.1.1.1"
NONCE = bytes(16)
TIMES = SessionTimes()
ABOUT = "ring, step 3, attempt 0"


def ports(peer: PeerId, number: int = 4) -> tuple[ExternalAddress, ...]:
    return tuple(ExternalAddress(HOSTS[peer], 5000 + each) for each in range(number))


def sees(peer: PeerId) -> Sightings:
    return Sightings(by_forwarder=frozenset({HOSTS[peer]}))


@dataclass
class World:
    """Two ends, and a network with these faults. The answerer needs `observing_s` for its ports."""

    draw: random.Random
    loss: float = 0.0
    doubled: float = 0.0
    delay_s: tuple[float, float] = (0.02, 0.3)
    observing_s: float = 0.2
    ends: dict[PeerId, PunchSessions] = field(
        default_factory=lambda: {ANN: PunchSessions(TIMES), BOB: PunchSessions(TIMES)}
    )
    punches: dict[PeerId, list[Punch]] = field(default_factory=lambda: {ANN: [], BOB: []})
    failures: dict[PeerId, list[Failed]] = field(default_factory=lambda: {ANN: [], BOB: []})
    sent: int = 0
    now: float = 0.0
    _due: list[tuple[float, int, PeerId, bytes | Gather]] = field(default_factory=list)
    _serial: count[int] = field(default_factory=count)

    def execute(self, me: PeerId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._send(to, encode(message))
                case Gather():
                    self._push(self.now + self.observing_s, me, effect)
                case Punch():
                    self.punches[me].append(effect)
                case Failed():
                    self.failures[me].append(effect)

    def _send(self, to: PeerId, data: bytes) -> None:
        self.sent += 1
        for _ in range(1 + (self.draw.random() < self.doubled)):
            if self.draw.random() >= self.loss:
                self._push(self.now + self.draw.uniform(*self.delay_s), to, data)

    def _push(self, at: float, to: PeerId, what: bytes | Gather) -> None:
        heapq.heappush(self._due, (at, next(self._serial), to, what))

    def run(self, until: float = 60.0) -> None:
        while self.now < until:
            ticks = min(end.next_deadline() for end in self.ends.values())
            if self._due and self._due[0][0] <= ticks:
                self.now, _, to, what = heapq.heappop(self._due)
                self._happen(to, what)
            elif ticks < until:
                self.now = max(self.now, ticks)
                for me, end in self.ends.items():
                    self.execute(me, end.tick(self.now))
            else:
                return

    def _happen(self, me: PeerId, what: bytes | Gather) -> None:
        end, other = self.ends[me], BOB if me == ANN else ANN
        if isinstance(what, Gather):
            ours = ports(me, what.count)
            self.execute(me, end.gathered(what.peer, what.nonce, ours, now=self.now))
        else:
            self.execute(me, end.receive(other, decode(what), sees(other), now=self.now))

    def offer(self) -> None:
        effects = self.ends[ANN].offer(BOB, ABOUT, ports(ANN), nonce=NONCE, now=self.now)
        self.execute(ANN, effects)


def expected(me: PeerId, start_at: float) -> Punch:
    other = BOB if me == ANN else ANN
    return Punch(other, NONCE, ABOUT, start_at, ports(other), dials=me == ANN)


@pytest.mark.parametrize("seed", range(50))
def test_both_ends_begin_at_about_the_same_time(seed: int) -> None:
    world = World(random.Random(seed))
    world.offer()
    world.run()
    (ann,), (bob,) = world.punches[ANN], world.punches[BOB]
    assert (ann, bob) == (expected(ANN, ann.start_at), expected(BOB, bob.start_at))
    # Each end is wrong by at most half of the difference between two ways, plus one way's jitter.
    low, high = world.delay_s
    assert abs(ann.start_at - bob.start_at) <= 1.5 * (high - low)
    assert world.failures == {ANN: [], BOB: []}


def test_equal_delays_give_equal_starts() -> None:
    world = World(random.Random(1), delay_s=(0.1, 0.1))
    world.offer()
    world.run()
    (ann,), (bob,) = world.punches[ANN], world.punches[BOB]
    assert ann.start_at == pytest.approx(bob.start_at, abs=0.001)
    assert ann.start_at == pytest.approx(0.5, abs=0.001)  # three ways of 0.1 s, and observing


@pytest.mark.parametrize("seed", range(200))
def test_lost_and_doubled_messages_cost_little(seed: int) -> None:
    """Each end punches at most once. If the offerer punches, then so does the answerer, at most
    `go_s` later than it could have."""
    world = World(random.Random(seed), loss=0.3, doubled=0.3)
    world.offer()
    world.run()
    for me in (ANN, BOB):
        assert len(world.punches[me]) + len(world.failures[me]) <= 1
    if world.punches[ANN]:
        (ann,), (bob,) = world.punches[ANN], world.punches[BOB]
        assert abs(ann.start_at - bob.start_at) <= TIMES.go_s + 0.6
    else:
        assert [each.reason for each in world.failures[ANN]] == ["the peer did not answer in time"]
    assert world.sent <= 2 * SENDS_MAX
    assert [len(end) for end in world.ends.values()] == [0, 0]


def test_most_agreements_survive_a_third_of_lost_messages() -> None:
    def works(seed: int) -> bool:
        world = World(random.Random(seed), loss=0.3, doubled=0.3)
        world.offer()
        world.run()
        return bool(world.punches[ANN] and world.punches[BOB])

    assert sum(map(works, range(200))) >= 190


def test_dead_network_ends_in_a_failure() -> None:
    world = World(random.Random(1), loss=1.0)
    world.offer()
    world.run()
    assert world.punches == {ANN: [], BOB: []}
    assert world.failures[ANN] == [
        Failed(BOB, NONCE, ABOUT, "the peer did not answer in time", ours=True)
    ]


def test_confirmed_message_is_not_sent_again() -> None:
    ann, bob = PunchSessions(TIMES), PunchSessions(TIMES)
    (offer,) = ann.offer(BOB, ABOUT, ports(ANN), nonce=NONCE, now=0.0)
    assert isinstance(offer, Send)
    (again,) = ann.tick(TIMES.resend_s)
    assert isinstance(again, Send)
    ann.delivered(BOB, again.message)
    assert ann.tick(3 * TIMES.resend_s) == []
    bob.receive(ANN, offer.message, sees(ANN), now=0.0)
    (answer,) = bob.gathered(ANN, NONCE, ports(BOB), now=0.1)
    assert isinstance(answer, Send)
    bob.delivered(ANN, offer.message)  # It is not Bob's own.
    assert [type(each) for each in bob.tick(0.1 + TIMES.resend_s)] == [Send]
    bob.delivered(ANN, answer.message)
    assert bob.tick(0.1 + 2 * TIMES.resend_s) == []
    assert [type(each) for each in bob.tick(0.1 + TIMES.go_s)] == [Punch]


def bob_hears(bob: PunchSessions, message: PunchMessage, now: float = 0.0) -> list[Effect]:
    return bob.receive(EVE, message, sees(EVE), now=now)


def test_offer_that_names_a_third_party_is_refused() -> None:
    bob = PunchSessions(TIMES)
    stolen = (*ports(EVE, 1), ExternalAddress(VICTIM, 5000))
    reason = f"nobody sees that peer at {VICTIM}"
    assert bob_hears(bob, PunchOffer(NONCE, ABOUT, 0, stolen)) == [
        Send(EVE, PunchRefusal(NONCE, reason)),
        Failed(EVE, NONCE, ABOUT, reason, ours=False),
    ]
    assert bob_hears(bob, PunchGo(NONCE), 0.1) == []
    assert bob.tick(3600.0) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "224.0.0.9", "169.254.0.9", "192.168.1.1"])
def test_offer_for_loopback_multicast_or_gateway_sends_only_a_refusal(host: str) -> None:
    """Not even if the peer seems to be there."""
    sightings = Sightings(
        by_us=frozenset({host}),
        by_forwarder=frozenset({host}),
        own_hosts=frozenset({"192.168.1.2"}),
        gateways=frozenset({"192.168.1.1"}),
    )
    offer = PunchOffer(NONCE, ABOUT, 0, (ExternalAddress(host, 5000),))
    refused, failed = PunchSessions(TIMES).receive(EVE, offer, sightings, now=0.0)
    assert isinstance(refused, Send)
    assert isinstance(refused.message, PunchRefusal)
    assert failed == Failed(EVE, NONCE, ABOUT, refused.message.reason, ours=False)


def test_answer_that_names_a_third_party_ends_the_agreement() -> None:
    ann = PunchSessions(TIMES)
    ann.offer(EVE, ABOUT, ports(ANN), nonce=NONCE, now=0.0)
    stolen = tuple(ExternalAddress(VICTIM, 5000 + each) for each in range(4))
    reason = f"nobody sees that peer at {VICTIM}"
    found = ann.receive(EVE, PunchAnswer(NONCE, 0, 0, stolen), sees(EVE), now=0.1)
    assert found == [Failed(EVE, NONCE, ABOUT, reason, ours=True)]
    good = PunchAnswer(NONCE, 0, 0, ports(EVE))
    assert ann.receive(EVE, good, sees(EVE), now=0.2) == []


def test_answer_that_does_not_match_the_offer_is_an_error() -> None:
    ann = PunchSessions(TIMES)
    ann.offer(EVE, ABOUT, ports(ANN), nonce=NONCE, now=0.0)
    for wrong in (PunchAnswer(NONCE, 7, 0, ports(EVE)), PunchAnswer(NONCE, 0, 0, ports(EVE, 3))):
        with pytest.raises(RemoteProtocolError, match="does not match"):
            ann.receive(EVE, wrong, sees(EVE), now=0.1)


def test_messages_of_other_peers_and_nonces_have_no_effect() -> None:
    ann = PunchSessions(TIMES)
    ann.offer(BOB, ABOUT, ports(ANN), nonce=NONCE, now=0.0)
    for message in (PunchAnswer(NONCE, 0, 0, ports(EVE)), PunchGo(NONCE), PunchRefusal(NONCE, "")):
        assert ann.receive(EVE, message, sees(EVE), now=0.1) == []
    unknown = PunchAnswer(b"\1" * 16, 0, 0, ports(BOB))
    assert ann.receive(BOB, unknown, sees(BOB), now=0.1) == []


def test_replayed_offer_does_not_start_anything() -> None:
    bob, offer = PunchSessions(TIMES), PunchOffer(NONCE, ABOUT, 0, ports(EVE))
    assert bob_hears(bob, offer) == [Gather(EVE, NONCE, ABOUT, 4)]
    bob.gathered(EVE, NONCE, ports(BOB), now=0.1)
    assert [type(each) for each in bob_hears(bob, PunchGo(NONCE), 0.2)] == [Punch]
    assert bob_hears(bob, offer, 0.3) == []
    assert bob_hears(bob, PunchGo(NONCE), 0.4) == []


def test_flood_of_offers_starts_only_a_few_agreements() -> None:
    bob, started = PunchSessions(TIMES, offers_per_s=0.1), 0
    for number in range(1000):
        offer = PunchOffer(number.to_bytes(16, "big"), ABOUT, 0, ports(EVE))
        started += len(bob_hears(bob, offer, now=number / 1000))
    assert started == OFFERS_AT_ONCE
    honest = bob.receive(ANN, PunchOffer(NONCE, ABOUT, 0, ports(ANN)), sees(ANN), now=1.0)
    assert honest == [Gather(ANN, NONCE, ABOUT, 4)]


def test_flood_of_repeated_messages_causes_a_bounded_number_of_answers() -> None:
    bob, sent = PunchSessions(TIMES), 0
    bob_hears(bob, PunchOffer(NONCE, ABOUT, 0, ports(EVE)))
    sent += len(bob.gathered(EVE, NONCE, ports(BOB), now=0.1))
    for number in range(1000):
        sent += len(bob_hears(bob, PunchOffer(NONCE, ABOUT, number % 16, ports(EVE)), 0.2))
    assert sent <= SENDS_MAX


def test_unwanted_offer_is_refused_and_the_offerer_learns_why() -> None:
    bob, ann = PunchSessions(TIMES), PunchSessions(TIMES)
    (sent,) = ann.offer(BOB, ABOUT, ports(ANN), nonce=NONCE, now=0.0)
    assert isinstance(sent, Send)
    bob.receive(ANN, sent.message, sees(ANN), now=0.1)
    refused, _ = bob.refuse(ANN, NONCE, "no such reduce", now=0.2)
    assert isinstance(refused, Send)
    assert ann.receive(BOB, refused.message, sees(BOB), now=0.3) == [
        Failed(BOB, NONCE, ABOUT, "it refused: no such reduce", ours=True)
    ]
    assert bob.gathered(ANN, NONCE, ports(BOB), now=0.4) == []


def test_offer_without_ports_leaves_nothing_behind() -> None:
    sessions = PunchSessions()
    for ours in ((), ports(ANN, 9)):
        with pytest.raises(LocalProtocolError, match="an offer needs"):
            sessions.offer(BOB, ABOUT, ours, nonce=NONCE, now=0.0)
    assert (len(sessions), sessions.tick(60.0)) == (0, [])
