"""Be the only process with this identity: make sure at the start, and go on making sure.

Two with one name hear nothing of each other: gossip brings nobody its own words, and a neighbour
has one gossip stream for a name, so that it hears the one or the other. But any neighbour can be
asked whom else it heard under our name; and to ask is to be heard, but for one that only starts.

At the start: after a restart, even within a second of a kill, that is the process before, which
says no more. A namesake that lives goes on speaking, and then this process does not start. The last
words of a dead one may still be under way, so it must be found to have spoken anew twice.

Later (the two started at once, or the network was in parts): some neighbours are asked every few
seconds, and all of them once one has heard somebody. If that one lives, this process votes no more,
and so will the other. The younger, by what most neighbours heard first, ends, after it has gone on
asking for long enough that the other has noticed. The older stays without a vote until its next
start: it cannot know what the other has signed. One neighbour could silence anybody by a lie, so
more than half of those who answer are believed, voters before others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import trio

from p2ptrain.errors import IdentityInUse, PeerError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.ledger.events import NotAlone
from p2ptrain.names import label, peer_name
from p2ptrain.net import Network
from p2ptrain.node.gossip import PATIENCE
from p2ptrain.node.learning import Say
from p2ptrain.node.namesakes import (
    NAMESAKE_BYTES_MAX,
    Namesake,
    Question,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from p2ptrain.node.parts import Parts
from p2ptrain.node.topics import NAMESAKE_PROTOCOL, Handler

LOOKS = 2
"""How often each witness must have heard a namesake anew."""

LOOK_S = 4.0
"""Between two questions while nobody is suspected."""

ALARM_S = 2.0
"""Between two questions to everybody once there are two of us."""

LINGER_LOOKS = 8
"""How often each of the two goes on asking everybody, so that the other's questions find it."""

ASKED_AT_ONCE = 4
"""Neighbours that are asked each time; a question costs both sides some milliseconds of CPU."""

WATCH_S = 30.0
"""So long a namesake that is heard on and off is watched before the start, or before the next
question."""

ANSWER_S = 5.0
ASKED_MAX = 16
"""Neighbours that are asked; each knows what the others know."""

Verdict = Mapping[PeerId, Namesake]
"""Who hears our living namesake."""


async def be_alone(network: Network, me: PeerId, incarnation: int, say: Say) -> None:
    """Return once nobody who answers hears another process under our name.

    Raises:
        IdentityInUse: more than half of those who answer do.
    """
    question = Question(incarnation, starting=True)
    suspected = await _asked(network, question, network.connected())
    if not any(suspected.values()):
        return
    say(f"somebody spoke as {peer_name(me)} a moment ago: making sure that it has ended")
    if verdict := await _living(network, question, voters=()):
        raise in_use(me, verdict)


async def notice_namesake(parts: Parts) -> None:
    """Stop voting when there is another process under our name; end if it was there before.

    Raises:
        IdentityInUse: it was.
    """
    network, asked = parts.network, 0
    question = Question(parts.incarnation, starting=False)
    while True:
        await trio.sleep(LOOK_S)
        asked += 1
        if not any((await _asked(network, question, _some(network, asked))).values()):
            continue
        if verdict := await _living(network, question, parts.ledger.state.voters):
            break
    heard_by = ", ".join(label(witness) for witness in sorted(verdict))
    await parts.tell(NotAlone(f"two nodes are heard as {label(parts.me)}, by {heard_by}"))
    younger = is_younger(verdict)
    for _ in range(LINGER_LOOKS):
        await trio.sleep(ALARM_S)
        await _asked(network, question, network.connected())
    if younger:
        raise in_use(parts.me, verdict)


def _some(network: Network, turn: int) -> list[PeerId]:
    """A few neighbours, in turn all."""
    neighbours = sorted(network.connected())
    first = turn * ASKED_AT_ONCE
    chosen = {(first + each) % len(neighbours) for each in range(ASKED_AT_ONCE) if neighbours}
    return [neighbours[each] for each in sorted(chosen)]


def answer_namesakes(parts: Parts) -> None:
    """From now on tell neighbours whom else we hear under their name."""
    parts.network.handle(NAMESAKE_PROTOCOL, _answer(parts), bytes_max=NAMESAKE_BYTES_MAX)


def _answer(parts: Parts) -> Handler:
    async def answer(peer: PeerId, payload: bytes) -> bytes:
        question, now = decode_question(payload), parts.now()
        found = parts.namesakes.other(peer, question.incarnation, now)
        if not question.starting:
            parts.namesakes.hear(peer, question.incarnation, now, PATIENCE * LOOK_S)
        return encode_answer(found)

    return answer


def is_younger(verdict: Verdict) -> bool:
    """Whether more witnesses heard the other before us than after. If they are divided evenly
    nobody ends, but neither votes.
    """
    older = Counter(each.older for each in verdict.values())
    return older[True] > older[False]


def in_use(me: PeerId, witnesses: Collection[PeerId]) -> IdentityInUse:
    """For who is about to start, or has started, while a namesake lives."""
    heard = [f"{label(witness)} hears it beside this process" for witness in sorted(witnesses)]
    return IdentityInUse(
        f"another node is running as {label(me)}",
        evidence=heard,
        likely="this home, or its identity.key, was copied from another machine where a node runs",
        do="stop the other node; or give this one a --home of its own, and with it a new identity",
    )


async def _living(network: Network, question: Question, voters: Collection[PeerId]) -> Verdict:
    """Those who hear a namesake speak again and again, once they are more than half of those who
    answer; of the voters, where any answers. Nobody, once nobody expects it to speak any more.
    """
    last: dict[PeerId, Namesake] = {}
    anew: Counter[PeerId] = Counter()
    with trio.move_on_after(WATCH_S):
        while True:
            answers = await _asked(network, question, network.connected())
            heard = {peer: each for peer, each in answers.items() if each is not None}
            anew.update(peer for peer in heard if spoke_anew(last.get(peer), heard[peer]))
            last |= heard
            jury = answers.keys() & set(voters) or answers.keys()
            living = {peer for peer in jury if anew[peer] >= LOOKS}
            if 2 * len(living) > len(jury):
                return {peer: last[peer] for peer in living}
            if not heard:
                break
            await trio.sleep(min(ALARM_S, max(each.again_ms for each in heard.values()) / 1000))
    return {}


def spoke_anew(before: Namesake | None, after: Namesake) -> bool:
    """Whether a namesake that was heard before has been heard since."""
    if before is None or before.incarnation != after.incarnation:
        return False
    return after.times > before.times


async def _asked(
    network: Network, question: Question, peers: Collection[PeerId]
) -> dict[PeerId, Namesake | None]:
    """What each of these, if it answers, has heard under our name."""
    found: dict[PeerId, Namesake | None] = {}

    async def ask(peer: PeerId) -> None:
        try:
            answer = await network.request(
                peer,
                NAMESAKE_PROTOCOL,
                encode_question(question),
                deadline_s=ANSWER_S,
                bytes_max=NAMESAKE_BYTES_MAX,
            )
            found[peer] = decode_answer(answer)
        except (PeerError, RemoteProtocolError):
            return  # It cannot be a witness now; those who can decide.

    async with trio.open_nursery() as nursery:
        for peer in sorted(peers)[:ASKED_MAX]:
            nursery.start_soon(ask, peer)
    return found
