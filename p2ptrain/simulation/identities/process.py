"""One simulated process: the real identity checks of a node, with a minimal environment.

A process starts, asks members whether another process uses its identity, sends heartbeats, votes,
and ends. It does the same as the tasks of `node.joining.duplicate_identity`, but without trio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2ptrain.ids import PeerId, RunId
from p2ptrain.peers import duplicate_watch as watching
from p2ptrain.peers.duplicate_watch import DuplicateWatch
from p2ptrain.peers.identity_mailboxes import IdentityMailboxes
from p2ptrain.peers.identity_messages import IdentityNotice, IdentityQuestion, IdentityReply
from p2ptrain.peers.incarnations import (
    DRAW_BITS,
    Incarnations,
    IncarnationSpan,
    Mark,
    draw_of,
    incarnation_of,
    starts_of,
)
from p2ptrain.peers.replayed_heartbeats import ReplayedHeartbeats
from p2ptrain.simulation.disk import signer, verify
from p2ptrain.simulation.identities.homes import SimHome

if TYPE_CHECKING:
    from p2ptrain.simulation.identities.world import IdentityWorld

RUN = RunId("0" * 64)
BEAT_S = 2.0
PATIENCE = 1.25
ANSWER_S = 3.0
SEEN_S = 5.0
"""Seconds for which gossip drops repeated messages. Real gossip drops them for two minutes.
This time is shorter, so that more replays arrive and are tested."""


@dataclass(frozen=True, slots=True)
class MarkedHeartbeat:
    author: PeerId
    mark: Mark
    serial: int


class SimProcess:
    """`reaches` are the connected peers. A `lone` process cannot ask any peer when it starts."""

    def __init__(
        self, world: IdentityWorld, me: PeerId, home: SimHome, reaches: set[PeerId], *, lone: bool
    ) -> None:
        self.world, self.me, self.home, self.reaches = world, me, home, reaches
        self.began_s = world.clock.now
        self.running_s: float | None = None
        self.ended_s: float | None = None
        self.silent_s: float | None = None
        self.ends_s = float("inf")
        self.serial = 0
        self.under_way = 0
        self.incarnations = Incarnations(world.is_member)
        self.mailboxes = IdentityMailboxes(self.incarnations, world.is_member)
        self.replays = ReplayedHeartbeats()
        self._seen: dict[MarkedHeartbeat, float] = {}
        draw = world.random.getrandbits(DRAW_BITS)
        self.watch = self._watch_as(incarnation_of(home.count(0), draw), starting=True)
        self._over_s = self.began_s + watching.USUAL_TIMING.start_wait_s
        if lone:
            self._run()
        else:
            self._starting()

    @property
    def alive(self) -> bool:
        return self.ended_s is None

    @property
    def running(self) -> bool:
        return self.alive and self.running_s is not None

    @property
    def votes(self) -> bool:
        return self.running and self.silent_s is None

    def end(self) -> None:
        if self.alive:
            self.ended_s = self.world.clock.now

    def _watch_as(self, incarnation: int, *, starting: bool) -> DuplicateWatch:
        sign, random = signer(self.me), self.world.random
        return DuplicateWatch(self.me, RUN, incarnation, sign, verify, random, starting=starting)

    # ── asking ───────────────────────────────────────────────────────────────────────────────────

    def _starting(self) -> None:
        """Start like the node's `wait_until_unique` and `start`, which wait while a question is
        unanswered."""
        if not self.alive or self.running:
            return
        now = self.world.clock.now
        if now >= self.watch.next_ask_s():
            self._ask()
        if self.watch.duplicate is not None:
            self.world.checkers.found_duplicate(self)
            self.end()
        elif now >= self._over_s or (not self.under_way and self.watch.may_start()):
            self._run()
        else:
            due_s = min(self.watch.next_ask_s(), self._over_s)
            self.world.clock.at(due_s, self._starting)

    def _run(self) -> None:
        now, watch = self.world.clock.now, self.watch
        incarnation, behind = watch.incarnation, starts_of(watch.incarnation_to_exceed(now))
        if behind:
            incarnation = incarnation_of(self.home.count(behind), draw_of(incarnation))
        self.watch = self._watch_as(incarnation, starting=False)
        self.running_s = now
        self.world.checkers.started(self)
        self._beat()
        self._check()

    def _check(self) -> None:
        """Call `check_now` regularly, as the node's `watch_for_duplicates` does."""
        if not self.running:
            return
        self.check_now()
        due_s = min(self.watch.next_ask_s(), self.world.clock.now + watching.ALARM_S)
        self.world.clock.at(due_s, self._check)

    def check_now(self) -> None:
        """Ask a question if one is due, and act on the answers so far."""
        now, found = self.world.clock.now, self.watch.duplicate
        if now >= self.watch.next_ask_s():
            self._ask()
        if found is not None and self.silent_s is None:
            self.world.checkers.found_duplicate(self)
            self.silent_s = now
        if found is not None and found.ends_us:
            self.ends_s = min(self.ends_s, now + watching.LINGER_S)
        if now >= self.ends_s:
            self.end()
            return
        if behind := self.watch.incarnation_to_exceed(now):
            counted = self.home.count(starts_of(behind))
            draw = draw_of(self.watch.incarnation)
            self.watch.use_incarnation(incarnation_of(counted, draw))

    def _ask(self) -> None:
        world = self.world
        connected = self.reaches | set(world.strangers)
        voters, others = watching.peers_to_ask(
            connected, world.is_member, world.members, world.members
        )
        for peer, question in self.watch.ask(voters, others, world.clock.now):
            self.under_way += 1
            world.carry_question(self, peer, question)
            world.clock.after(ANSWER_S, self._give_up)

    def _give_up(self) -> None:
        """Stop waiting for one question: it was answered earlier, or never will be."""
        self.under_way -= 1

    def handle_reply(self, member: PeerId, reply: IdentityReply) -> None:
        if not self.alive:
            return
        self.under_way -= 1
        self.watch.note_reply(member, reply, self.world.clock.now)
        if self.running:
            self.check_now()
        else:
            self._starting()

    # ── as a member ──────────────────────────────────────────────────────────────────────────────

    def answer(self, asker: PeerId, question: IdentityQuestion) -> IdentityReply | None:
        reply = self.mailboxes.answer(asker, question, self.world.clock.now)
        for notice in self.mailboxes.pop_notices():
            self.world.publish_notice(self.me, notice)
        return reply

    def handle_notice(self, author: PeerId, notice: IdentityNotice) -> None:
        now = self.world.clock.now
        self.mailboxes.note_notice(author, notice, now)
        if notice.peer == self.me and notice.proof is None:
            self.watch.note_challenges(author, [notice.nonce], now)
            self.check_now()

    # ── heartbeats ───────────────────────────────────────────────────────────────────────────────

    def _beat(self) -> None:
        if not self.running:
            return
        beat = MarkedHeartbeat(self.me, self.watch.mark, self.serial)
        self.serial += 1
        self.world.publish_beat(self, beat)
        self.world.clock.after(BEAT_S, self._beat)

    def handle_heartbeat(self, forwarder: PeerId, beat: MarkedHeartbeat) -> None:
        """Handle a heartbeat as gossip does: drop it if it is a repetition or stale, else accept
        and forward it."""
        now = self.world.clock.now
        if not self.running or now < self._seen.get(beat, float("-inf")) + SEEN_S:
            return
        incarnation = beat.mark.incarnation
        if beat.author == self.me:
            self._handle_own_heartbeat(forwarder, incarnation)
            return
        if self.incarnations.is_stale(beat.author, incarnation):
            self._complain(forwarder, beat.author, self.incarnations.heard_span(beat.author))
            return
        self._seen[beat] = now
        self.world.pass_on(self, beat)
        heard = beat.author, incarnation, beat.serial, now
        if self.incarnations.note_decoded(*heard):
            self.world.checkers.taken(self, beat)
            self.incarnations.keep_mark(beat.author, beat.mark)
        self.incarnations.note_arrival(*heard, PATIENCE * BEAT_S)

    def _handle_own_heartbeat(self, forwarder: PeerId, incarnation: int) -> None:
        if incarnation < self.watch.incarnation:
            spoke = IncarnationSpan(self.running_s or 0.0, self.world.clock.now)
            self._complain(forwarder, self.me, spoke)
        elif incarnation > self.watch.incarnation:
            self.watch.ask_soon(self.world.clock.now)

    def _complain(self, forwarder: PeerId, author: PeerId, spoke: IncarnationSpan | None) -> None:
        brought = self.incarnations.heard_span(forwarder)
        since_s = None if brought is None else brought.first_s
        if self.replays.note_replay(forwarder, author, spoke, since_s, self.world.clock.now):
            self.world.named.add(forwarder)
            self.world.checkers.named(self, forwarder)
