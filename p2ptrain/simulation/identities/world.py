"""A world of processes with identities: restarts, restored and copied homes, and one liar.

The liar is a member. It hears every heartbeat and replays any of them, at any time, to any peer.
When it is asked, it is silent, withholds answers, repeats old proofs, or invents answers. It also
announces challenges and proofs by gossip. It does not have the keys of other peers. Strangers are
connected to all peers, and are silent when asked.

Two processes with one identity are connected to different members or to the same ones. A gossip
message to that identity reaches only one of them, chosen at random.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from p2ptrain.ids import PeerId
from p2ptrain.peers.identity_messages import (
    NONCE_BYTES,
    IdentityNotice,
    IdentityProof,
    IdentityQuestion,
    IdentityReply,
)
from p2ptrain.peers.incarnations import INCARNATION_MAX, Mark
from p2ptrain.simulation.clock import Clock
from p2ptrain.simulation.identities.checkers import Checkers
from p2ptrain.simulation.identities.homes import SimHome
from p2ptrain.simulation.identities.process import BEAT_S, MarkedHeartbeat, SimProcess

LOSS = 0.05
DELAY_MAX_S = 0.3
STRANGERS = tuple(PeerId(f"a{number:02}") for number in range(20))
"""Peers that are not members. Their ids sort before any member's."""

RECORDED_MAX = 400
FAULTS_S = 40.0
"""Seconds after which faults stop. The liar continues."""
END_S = 105.0


class IdentityWorld:
    """All `members` except `liar` are honest. `processes` are all that have ever existed."""

    def __init__(self, random: Random, members: int) -> None:
        self.random = random
        self.clock = Clock()
        names = [PeerId(f"p{number}") for number in range(members)]
        self.members = frozenset(names)
        self.liar = random.choice(names)
        self.strangers = STRANGERS
        self.honest = [name for name in names if name != self.liar]
        self.homes = {name: SimHome() for name in self.honest}
        self.processes: list[SimProcess] = []
        self._living: dict[PeerId, list[SimProcess]] = {}
        self.checkers = Checkers(self)
        self.restarts = self.replayed = 0
        self.named: set[PeerId] = set()
        self._beats: list[MarkedHeartbeat] = []
        self._proofs: list[IdentityProof] = []
        self._nonces: list[tuple[PeerId, bytes]] = []
        for name in self.honest:
            self.clock.after(random.uniform(0, 3), self._starter(name, self.homes[name]))
        self.clock.after(1.0, self._fail)
        self.clock.after(1.0, self._lie)
        self._speak_as_liar(0)

    def is_member(self, peer: PeerId) -> bool:
        return peer in self.members

    def run(self) -> list[str]:
        """Run the world to its end. Return the violations."""
        while self.clock.now < END_S and not self.checkers.violations and self.clock.step():
            pass
        self.checkers.at_end()
        return self.checkers.violations

    # ── messages between processes ───────────────────────────────────────────────────────────────

    def carry_question(self, asker: SimProcess, member: PeerId, question: IdentityQuestion) -> None:
        self._nonces.append((asker.me, question.nonce))
        self._proofs += question.proofs

        def arrive() -> None:
            reply = self._reply(asker, member, question)
            if reply is not None and self._gets_through():
                self.clock.after(self._delay_s(), lambda: asker.handle_reply(member, reply))

        if self._gets_through():
            self.clock.after(self._delay_s(), arrive)

    def publish_beat(self, sender: SimProcess, beat: MarkedHeartbeat) -> None:
        self.checkers.spoken(sender, beat)
        self._remember(beat)
        for peer in self.honest:
            if peer in sender.reaches:
                self._bring(sender.me, peer, beat)

    def pass_on(self, forwarder: SimProcess, beat: MarkedHeartbeat) -> None:
        peer = self.random.choice(self.honest)
        if peer in forwarder.reaches and peer != beat.author:
            self._bring(forwarder.me, peer, beat)

    def publish_notice(self, author: PeerId, notice: IdentityNotice) -> None:
        for peer in self.honest:
            if peer != author:
                self._bring_to(peer, lambda process: process.handle_notice(author, notice))

    def of(self, peer: PeerId) -> list[SimProcess]:
        """Return the living processes with this identity."""
        living = [each for each in self._living.get(peer, ()) if each.alive]
        self._living[peer] = living
        return living

    def _bring(self, forwarder: PeerId, peer: PeerId, beat: MarkedHeartbeat) -> None:
        self._bring_to(peer, lambda process: process.handle_heartbeat(forwarder, beat))

    def _bring_to(self, peer: PeerId, hear: Callable[[SimProcess], None]) -> None:
        """Deliver gossip to one random running process of `peer`."""

        def arrive() -> None:
            found = [each for each in self.of(peer) if each.running]
            if found:
                hear(self.random.choice(found))

        if self._gets_through():
            self.clock.after(self._delay_s(), arrive)

    def _reply(
        self, asker: SimProcess, member: PeerId, question: IdentityQuestion
    ) -> IdentityReply | None:
        """Return the answer of the asked member; None if it is down or a stranger."""
        if member == self.liar:
            return self._false_reply(asker)
        found = [each for each in self.of(member) if each.running and each is not asker]
        return self.random.choice(found).answer(asker.me, question) if found else None

    def _gets_through(self) -> bool:
        return self.random.random() >= LOSS

    def _delay_s(self) -> float:
        return self.random.uniform(0.01, DELAY_MAX_S)

    # ── faults ───────────────────────────────────────────────────────────────────────────────────

    def _starter(self, peer: PeerId, home: SimHome, *, lone: bool = False) -> Callable[[], None]:
        def start() -> None:
            everybody = set(self.members) - {peer}
            process = SimProcess(self, peer, home, everybody, lone=lone)
            self.processes.append(process)
            self._living.setdefault(peer, []).append(process)

        return start

    def _fail(self) -> None:
        random = self.random
        if self.clock.now >= FAULTS_S:
            return
        peer = random.choice(self.honest)
        what = random.random()
        alive = self.of(peer)
        if what < 0.75 and alive:
            self._restart(random.choice(alive))
        elif len(alive) == 1 and all(len(self.of(each)) <= 1 for each in self.honest):
            self._copy(alive[0])  # At most one copy runs, so that enough members can be asked.
        self.clock.after(random.uniform(0.5, 12.0), self._fail)

    def _restart(self, process: SimProcess) -> None:
        """Crash a process. Then start a new one from the same home or from an old backup of it;
        half of the crashed copies are not started again."""
        self.restarts += 1
        process.end()
        home = process.home
        home.crash(self.random)
        if self.random.random() < 0.2:
            home.restore(self.random)
        if home is self.homes[process.me] or self.random.random() < 0.5:
            self.clock.after(self.random.uniform(0.0, 6.0), self._starter(process.me, home))

    def _copy(self, original: SimProcess) -> None:
        """Start a second process from a copy of the home. Half of the copies cannot ask any peer
        when they start."""
        lone = self.random.random() < 0.5
        home = original.home.copy(self.random)
        apart = lone and len(self.honest) >= 5 and self.random.random() < 0.5
        self._starter(original.me, home, lone=lone)()
        if apart:
            others = sorted(self.members - {original.me, self.liar})
            half = set(self.random.sample(others, len(others) // 2))
            self.processes[-1].reaches = half
            original.reaches = set(others) - half

    # ── lies ─────────────────────────────────────────────────────────────────────────────────────

    def _remember(self, beat: MarkedHeartbeat) -> None:
        self._beats.append(beat)
        if len(self._beats) > RECORDED_MAX:
            del self._beats[self.random.randrange(RECORDED_MAX // 2)]

    def _lie(self) -> None:
        """Replay a few heartbeats, and sometimes announce a false challenge or proof."""
        random = self.random
        for beat in random.choices(self._beats, k=random.randint(0, 4) if self._beats else 0):
            self.replayed += 1
            self._bring(self.liar, random.choice(self.honest), beat)
        if random.random() < 0.3:
            peer, nonce = self._some_nonce()
            proof = self._some_proof(nonce) if random.random() < 0.5 else None
            notice = IdentityNotice(peer, nonce if proof is None else proof.nonce, proof)
            self.publish_notice(self.liar, notice)
        self.clock.after(random.uniform(0.2, 2.0), self._lie)

    def _speak_as_liar(self, serial: int) -> None:
        """Send the liar's own heartbeats, which are like those of an honest member."""
        beat = MarkedHeartbeat(self.liar, Mark(1 << 32, b""), serial)
        for peer in self.honest:
            self._bring(self.liar, peer, beat)
        self.clock.after(BEAT_S, lambda: self._speak_as_liar(serial + 1))

    def _false_reply(self, asker: SimProcess) -> IdentityReply | None:
        random = self.random
        if random.random() < 0.3:
            return None
        own = [nonce for peer, nonce in self._nonces[-40:] if peer == asker.me]
        proofs = tuple(self._some_proof(random.choice(own)) for _ in range(random.randint(0, 3)))
        challenges = tuple(self._some_nonce()[1] for _ in range(random.randint(0, 3)))
        return IdentityReply(random.random() < 0.5, challenges, proofs, self._some_mark(asker.me))

    def _some_nonce(self) -> tuple[PeerId, bytes]:
        if self._nonces and self.random.random() < 0.7:
            return self.random.choice(self._nonces[-200:])
        return self.random.choice(self.honest), self.random.randbytes(NONCE_BYTES)

    def _some_proof(self, nonce: bytes) -> IdentityProof:
        """Return an old proof of another process, or an invented one for `nonce`."""
        if self._proofs and self.random.random() < 0.5:
            return self.random.choice(self._proofs[-100:])
        incarnation = self.random.choice([0, 1 << 32, INCARNATION_MAX])
        starting, signature = self.random.random() < 0.3, self.random.randbytes(16)
        return IdentityProof(nonce, incarnation, starting, signature)

    def _some_mark(self, peer: PeerId) -> Mark | None:
        draw = self.random.random()
        if draw < 0.3:
            return Mark(INCARNATION_MAX - self.random.randrange(1000), self.random.randbytes(16))
        old = [beat.mark for beat in self._beats if beat.author == peer]
        return self.random.choice(old) if draw < 0.6 and old else None


def simulate_identities(seed: int) -> IdentityWorld:
    """Run one world. The same seed gives the same world."""
    random = Random(f"identities/{seed}")
    world = IdentityWorld(random, members=random.randint(4, 6))
    world.run()
    return world
