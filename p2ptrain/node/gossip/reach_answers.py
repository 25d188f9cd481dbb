"""Answer a member that asks whether we can connect to it.

We connect to the two ports that the question names, and only at the address at the other end of
the connection that the question came through. So nobody can make us connect to a third party. A
private or loopback address is dialled only if the question itself came from it.

A liar gains little. Once a minute it can make us connect to two ports of its own address. Behind
a provider's NAT, other customers share that address; they receive a handshake and nothing else.
"""

from __future__ import annotations

from functools import partial

import trio

from p2ptrain.dataplane import DialHandle, Endpoint, prove
from p2ptrain.errors import (
    NetworkUnreachable,
    NotAuthorised,
    PeerTooSlow,
    PeerUnreachable,
    RemoteProtocolError,
)
from p2ptrain.ids import PeerId
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread
from p2ptrain.peers.protocol_names import REACH_PROTOCOL
from p2ptrain.peers.reach_messages import (
    QUESTION_BYTES_MAX,
    DialOutcome,
    ReachAnswer,
    ReachQuestion,
    decode_question,
    encode_answer,
)
from p2ptrain.rate_limit import Allowance

PEER_AGAIN_S = 60.0
"""Minimum seconds between two questions of one peer."""

AT_ONCE_MAX = 4
"""Maximum number of questions that are answered at the same time. Each one uses a thread."""

DIAL_S = 5.0
"""Deadline of one dial in seconds. TCP repeats a lost first packet after 1 s and after 3 s."""

_OUTCOMES = {
    "NET-REFUSED": DialOutcome.REFUSED,
    "NET-WRONG-ID": DialOutcome.ELSE,
    "NET-NOT-LIBP2P": DialOutcome.ELSE,
    "NET-RESET": DialOutcome.ELSE,
}
"""The outcome for each code of a dial that failed. Other codes mean that nobody answered."""


def answer_reach_questions(context: Context, *, dial_s: float = DIAL_S) -> None:
    """From now on, answer peers that are vouched for, and refuse all others."""
    allowance = Allowance(1, 1 / PEER_AGAIN_S)
    limiter = trio.CapacityLimiter(AT_ONCE_MAX)

    async def answer(peer: PeerId, payload: bytes) -> bytes:
        question = decode_question(payload)
        host = context.network.host_of(peer)
        if not context.peers.is_vouched_for(peer):
            raise NotAuthorised("only members may ask whether they can be reached")
        if not host:
            raise NotAuthorised("the address that this question came from is not known")
        if not limiter.available_tokens:  # The peer may ask again soon.
            untried = DialOutcome.UNTRIED
            return encode_answer(ReachAnswer(host, untried, untried))
        if not allowance.consume(peer, 1, context.now()):
            raise NotAuthorised("ask once a minute at most")
        limiter.acquire_nowait()
        try:
            return encode_answer(await _connect_back(context, peer, host, question, dial_s))
        finally:
            limiter.release()

    context.network.handle(REACH_PROTOCOL, answer, bytes_max=QUESTION_BYTES_MAX)


async def _connect_back(
    context: Context, peer: PeerId, host: str, question: ReachQuestion, dial_s: float
) -> ReachAnswer:
    """Try both ports of `host` at the same time.

    Raises RemoteProtocolError: the certificate in `question` does not belong to `peer`."""
    endpoint = Endpoint(peer, host, question.data_port, question.certificate_der)
    found = dict[str, DialOutcome]()

    async def try_control() -> None:
        found["control"] = await _try_control(context, peer, host, question.control_port, dial_s)

    async def try_data() -> None:
        found["data"] = await _try_data(context, endpoint, dial_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_control)
        nursery.start_soon(try_data)
    context.journal.write("reach-answered", peer=peer, **{k: str(v) for k, v in found.items()})
    return ReachAnswer(host, found["control"], found["data"])


async def _try_control(
    context: Context, peer: PeerId, host: str, port: int, dial_s: float
) -> DialOutcome:
    try:
        await context.network.prove(peer, host, port, deadline_s=dial_s)
    except NetworkUnreachable as exc:
        return _OUTCOMES.get(exc.code, DialOutcome.SILENT)
    return DialOutcome.REACHED


async def _try_data(context: Context, endpoint: Endpoint, dial_s: float) -> DialOutcome:
    dialling = DialHandle()
    work = partial(prove, context.plane.credentials, endpoint, deadline_s=dial_s, dialling=dialling)
    try:
        await in_thread(work, stop=dialling.give_up)
    except PeerTooSlow:
        return DialOutcome.SILENT
    except PeerUnreachable:
        return DialOutcome.REFUSED
    except RemoteProtocolError:
        return DialOutcome.ELSE
    return DialOutcome.REACHED
