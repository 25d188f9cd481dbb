"""Make sure that this process has no duplicate (another process with its identity): ask members at
the start and regularly after that. Also answer other nodes that ask the same.

`duplicate_watch` decides what to ask and what an answer proves. `identity_mailboxes` decides how a
member answers other peers. This module contains the tasks that use them: they send questions over
the control plane and notices by gossip, and react to a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import SystemRandom
from typing import NamedTuple

import trio

from p2ptrain.archive import start_count
from p2ptrain.errors import IdentityInUse, PeerError, RemoteProtocolError, TryLater
from p2ptrain.identity import Identity, verify
from p2ptrain.ids import PeerId
from p2ptrain.ledger.messages.events import CloneFound
from p2ptrain.names import label, peer_name
from p2ptrain.net import Network
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.state.changes import Changes
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import durably
from p2ptrain.peers.duplicate_watch import (
    USUAL_TIMING,
    Duplicate,
    DuplicateWatch,
    QuestionTiming,
    peers_to_ask,
)
from p2ptrain.peers.identity_messages import (
    QUESTION_BYTES_MAX,
    REPLY_BYTES_MAX,
    IdentityQuestion,
    decode_notice,
    decode_question,
    decode_reply,
    encode_notice,
    encode_question,
    encode_reply,
)
from p2ptrain.peers.incarnations import DRAW_BITS, draw_of, incarnation_of, starts_of
from p2ptrain.peers.protocol_names import IDENTITY_PROTOCOL, identity_topic
from p2ptrain.run import Run

ANSWER_S = 3.0
"""Deadline of an answer in seconds. Making an answer takes only a millisecond of CPU time. If one
member is slow, the process still learns the answers of the others, which are asked at the same
time."""

Admitted = Callable[[PeerId], bool]


class IdentityQuestions:
    """The open questions of one process. A slow or silent member does not delay the other
    questions. Rounds of questions begin about one second apart (`duplicate_watch.ALARM_S`) or
    more, and end after `ANSWER_S`, so only a few rounds are open at once."""

    def __init__(
        self, network: Network, watch: DuplicateWatch, admitted: Admitted, nursery: trio.Nursery
    ) -> None:
        self._network = network
        self._watch = watch
        self._admitted = admitted
        self._nursery = nursery
        self.under_way = 0
        self.has_asked = False
        self.answers = Changes()
        """Notified when a question is answered or fails."""

    def ask_members(self, voters: Collection[PeerId], members: Collection[PeerId] = ()) -> None:
        """Ask a few connected, admitted peers, chosen at random: voters first, then other members,
        or any admitted peers if no member is connected."""
        found = peers_to_ask(self._network.connected(), self._admitted, voters, members)
        for peer, question in self._watch.ask(*found, trio.current_time()):
            self.under_way += 1
            self.has_asked = True
            self._nursery.start_soon(self._ask_one, peer, question)

    async def _ask_one(self, peer: PeerId, question: IdentityQuestion) -> None:
        try:
            answer = await self._network.request(
                peer,
                IDENTITY_PROTOCOL,
                encode_question(question),
                deadline_s=ANSWER_S,
                bytes_max=REPLY_BYTES_MAX,
            )
            self._watch.note_reply(peer, decode_reply(answer), trio.current_time())
        except (PeerError, RemoteProtocolError):
            pass  # Another member is asked next time.
        self.under_way -= 1
        self.answers.notify_all()


async def wait_until_unique(
    network: Network,
    watch: DuplicateWatch,
    admitted: Admitted,
    founders: Collection[PeerId],
    print_line: PrintLine,
    wait_s: float = USUAL_TIMING.start_wait_s,
) -> bool:
    """Wait until no other process with our identity is known to be alive. This takes no time if no
    admitted peer is connected, a short time if no peer has heard another process recently, and
    `wait_s` otherwise. Return whether a peer was asked.

    Only a proof that is signed with our own key ends this process. So no peer can keep it from
    starting by merely claiming that another process is alive.

    Raises IdentityInUse: another process with this identity has proved that it is alive."""
    told = False
    with trio.move_on_after(wait_s):
        async with trio.open_nursery() as nursery:
            asking = IdentityQuestions(network, watch, admitted, nursery)
            asking.ask_members(founders)
            while asking.under_way or not watch.may_start():
                await _until_due(watch, asking)
                if not watch.may_start() and not told:
                    told = True
                    me = peer_name(watch.me)
                    print_line(
                        f"another process recently used the identity {me}; checking whether it "
                        "has ended"
                    )
                if watch.duplicate is not None:
                    break
                if trio.current_time() >= watch.next_ask_s():
                    asking.ask_members(founders)
            nursery.cancel_scope.cancel()
    if watch.duplicate is not None:
        raise in_use(watch.me, watch.duplicate)
    return asking.has_asked


async def watch_for_duplicates(context: Context) -> None:
    """Regularly ask members whether another process uses this identity. Once another process has
    proved that it is alive, stop voting, and end this process if it is the one that started later.

    Raises IdentityInUse: this process started later."""
    watch = context.identities.watch
    async with trio.open_nursery() as nursery:
        asking = IdentityQuestions(context.network, watch, context.admission.admits, nursery)
        context.identities.news = asking.answers
        while watch.duplicate is None:
            await _take_turn(context, asking)
        await _report_duplicate(context, watch.duplicate)
        while not watch.duplicate.ends_us:
            await _take_turn(context, asking)
        ends = context.now() + context.timing.questions.linger_s
        while context.now() < ends:
            await _take_turn(context, asking)
        raise in_use(context.me, watch.duplicate)


async def _until_due(watch: DuplicateWatch, asking: IdentityQuestions) -> None:
    """Wait until a question has been answered or has failed, or until it is time to ask again."""
    wait_s = max(0.0, watch.next_ask_s() - trio.current_time())
    await asking.answers.wait(at_most_s=wait_s)


async def _take_turn(context: Context, asking: IdentityQuestions) -> None:
    """Do one turn of the watch: wait as `_until_due` does, ask if it is time, end the hold on the
    ledger's messages if all asked peers have answered, and raise our incarnation if needed."""
    watch = context.identities.watch
    await _until_due(watch, asking)
    if context.now() >= watch.next_ask_s():
        asking.ask_members(context.ledger.snapshot.voters, context.ledger.snapshot.members)
    if asking.has_asked and not asking.under_way and watch.may_start():
        context.identities.first_question.end()
    await _count_on(context)


def answer_questions(context: Context) -> None:
    """From now on, answer peers' questions: pass nonces (random numbers to sign) and proofs between
    processes that share an identity."""

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        reply = context.identities.mailboxes.answer(peer, decode_question(payload), context.now())
        if reply is None:
            raise TryLater("too many duplicate-identity checks from this peer; try again later")
        for notice in context.identities.mailboxes.pop_notices():
            await context.network.publish(identity_topic(context.run), encode_notice(notice))
        return encode_reply(reply)

    context.network.handle(IDENTITY_PROTOCOL, answer, bytes_max=QUESTION_BYTES_MAX)


async def take_notice(context: Context, author: PeerId, payload: bytes) -> None:
    """Handle a notice that a member gossips: a nonce that some process wants to have signed, or a
    proof. Notices of peers that are not members are ignored."""
    if not context.ledger.snapshot.is_member(author):
        return
    notice, now = decode_notice(payload), context.now()
    context.identities.mailboxes.note_notice(author, notice, now)
    if notice.peer == context.me and notice.proof is None:
        context.identities.watch.note_challenges(author, [notice.nonce], now)
        context.identities.news.notify_all()


class Start(NamedTuple):
    """A start of this identity. `members_answered`: a peer was asked for signs of a duplicate."""

    incarnation: int
    members_answered: bool


async def start(
    network: Network,
    identity: Identity,
    run: Run,
    count: Callable[[int], int],
    admitted: Admitted,
    print_line: PrintLine,
    timing: QuestionTiming = USUAL_TIMING,
) -> Start:
    """Wait until no other process with this identity is known to be alive, and return the
    incarnation (a number that orders the starts of an identity) of this start. `count(n)` durably
    counts a start, as number n + 1 or higher, and returns its number.

    Raises:
        IdentityInUse: another process with this identity has proved that it is alive.
        StoreError: the start cannot be counted."""
    random = SystemRandom()
    draw = random.getrandbits(DRAW_BITS)
    incarnation = incarnation_of(await durably(count, 0), draw)
    watch = DuplicateWatch(
        identity.peer,
        run.id,
        incarnation,
        identity.sign,
        verify,
        random,
        starting=True,
        timing=timing,
    )
    answered = await wait_until_unique(
        network, watch, admitted, run.manifest.founders, print_line, timing.start_wait_s
    )
    behind = starts_of(watch.incarnation_to_exceed(trio.current_time()))
    if not behind:
        return Start(incarnation, answered)
    return Start(incarnation_of(await durably(count, behind), draw), answered)


def in_use(me: PeerId, found: Duplicate) -> IdentityInUse:
    """Return the error for a process that found that another one is running with its identity."""
    return IdentityInUse(
        f"another node is running as {label(me)}",
        evidence=[
            f"the other node is start number {starts_of(found.incarnation)} of this identity; it "
            "signed a random number that this process had just drawn, so it is running",
            f"{label(found.carried_by)} forwarded its answer",
        ],
        likely="this home, or its identity.key, was copied from another machine that runs a node",
        do="stop the other node, or give this one its own --home and thereby a new identity",
    )


async def _report_duplicate(context: Context, found: Duplicate) -> None:
    """Stop the ledger from voting, and write what is known about the duplicate to the journal."""
    mine, other = starts_of(context.identities.incarnation), starts_of(found.incarnation)
    context.journal.write(
        "duplicate", start=mine, other_start=other, carried_by=found.carried_by, ends=found.ends_us
    )
    await context.ledger.submit(
        CloneFound(
            f"another process signed as {label(context.me)}: it is start number {other} of this "
            f"identity, and this process is start number {mine}"
        )
    )


async def _count_on(context: Context) -> None:
    """If our key has signed a higher incarnation than ours, take one above it: peers would ignore
    the heartbeats of the lower one. This happens, for instance, after this home was restored from a
    backup."""
    behind = context.identities.watch.incarnation_to_exceed(context.now())
    if not behind:
        return
    counted = await durably(start_count.count_start, context.home.starts, starts_of(behind))
    incarnation = incarnation_of(counted, draw_of(context.identities.incarnation))
    context.journal.write("counted-on", start=starts_of(incarnation), after=starts_of(behind))
    context.identities.watch.use_incarnation(incarnation)
    context.own_heartbeat.send_now()
