"""How two peers agree to punch holes in their NATs: which addresses they call, and when.

    offerer                                   answerer
    offer(its candidates)     ───────────►    checks them, lets members observe its own ports
    checks them               ◄───────────    answer(its candidates)
    go                        ───────────►    begins now
    begins after half a round trip

Both ends then begin at about the same time. Messages may be lost, delayed or doubled: an offer and
an answer are sent again until the next message arrives, and all messages of one agreement carry the
offerer's nonce. A message that the other end has confirmed is not sent again. If each `go` is lost,
the answerer begins without it.

The offerer calls as the TLS client. The caller makes sure that only one end offers.

Only members of the roster may offer; the caller checks this. A lying member gains this: we observe
up to STREAMS_MAX ports and call it from them for two seconds, OFFERS_AT_ONCE times and then
OFFERS_PER_S times a second. It cannot choose whom we call; see `candidates`. A replayed offer is
recognised by its nonce while that is remembered. Later it is about something that the caller no
longer wants.

This module has no clock, no sockets and no randomness. Times and nonces are arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto

from p2ptrain.dataplane.candidates import STREAMS_MAX, ExternalAddress, Sightings, refusal
from p2ptrain.dataplane.punch_messages import (
    ATTEMPTS_MAX,
    REASON_BYTES_MAX,
    SPENT_MS_MAX,
    PunchAnswer,
    PunchGo,
    PunchMessage,
    PunchOffer,
    PunchRefusal,
)
from p2ptrain.errors import LocalProtocolError, RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.rate_limit import Allowance

OFFERS_AT_ONCE, OFFERS_PER_S = 8, 2.0
"""The offers that one peer may make. A pair needs one for each attempt of a reduce, and the reduces
of a very small model are less than a second apart."""
SENDS_MAX = 32
"""Maximum number of messages that we send for one agreement. It limits what doubled or invented
messages can make us send."""


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """`resend_s`: pause before an offer or answer is sent again, unless the caller reports that it
    was delivered. `agree_s`: an agreement takes at
    most this long. `go_s`: an answerer that hears nothing more begins after this time.
    `remember_s`: how long an agreement that has ended is remembered."""

    resend_s: float = 0.4
    agree_s: float = 4.0
    go_s: float = 1.0
    remember_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Send:
    peer: PeerId
    message: PunchMessage


@dataclass(frozen=True, slots=True)
class Gather:
    """Decide whether `about` is wanted. Then call `gathered` with `count` of our own candidates, or
    `refuse`."""

    peer: PeerId
    nonce: bytes
    about: str
    count: int


@dataclass(frozen=True, slots=True)
class Punch:
    """Punch at `start_at`: stream i calls `theirs[i]` from the port of our own candidate i. We are
    the TLS client if we made the offer (`dials`)."""

    peer: PeerId
    nonce: bytes
    about: str
    start_at: float
    theirs: tuple[ExternalAddress, ...]
    dials: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The agreement failed. `ours` says whether we made the offer."""

    peer: PeerId
    nonce: bytes
    about: str
    reason: str
    ours: bool


Effect = Send | Gather | Punch | Failed


class _State(Enum):
    OFFERED = auto()
    GATHERING = auto()
    ANSWERED = auto()
    OVER = auto()


@dataclass(slots=True)
class _Session:
    peer: PeerId
    nonce: bytes
    about: str
    state: _State
    ends: float
    """When the session fails or, once it is over, is forgotten."""
    resend_at: float = math.inf
    go_at: float = math.inf
    offers_at: dict[int, float] = field(default_factory=dict)
    """When each attempt of the offer was sent (by us) or received."""
    ours: tuple[ExternalAddress, ...] = ()
    theirs: tuple[ExternalAddress, ...] = ()
    last_word: PunchMessage | None = None
    """Sent again if the peer repeats itself after the session is over."""
    sends: int = 0


class PunchSessions:
    """All current and recent agreements of a node. The caller executes the returned effects."""

    def __init__(
        self, times: SessionTimes | None = None, *, offers_per_s: float = OFFERS_PER_S
    ) -> None:
        self._times = times or SessionTimes()
        self._sessions: dict[tuple[PeerId, bytes], _Session] = {}
        self._allowance = Allowance(OFFERS_AT_ONCE, offers_per_s)

    def __len__(self) -> int:
        return len(self._sessions)

    def next_deadline(self) -> float:
        """Return when `tick` has something to do; infinity if nothing is under way."""
        return min(
            (min(each.ends, each.resend_at, each.go_at) for each in self._sessions.values()),
            default=math.inf,
        )

    def offer(
        self,
        peer: PeerId,
        about: str,
        ours: tuple[ExternalAddress, ...],
        *,
        nonce: bytes,
        now: float,
    ) -> list[Effect]:
        """Offer to punch. `ours` are the external addresses of our ports, one for each stream.
        `nonce` is random."""
        if (peer, nonce) in self._sessions:
            raise LocalProtocolError("a nonce was used twice")
        if not 0 < len(ours) <= STREAMS_MAX:
            raise LocalProtocolError("an offer needs between one port and STREAMS_MAX ports")
        session = _Session(peer, nonce, about, _State.OFFERED, now + self._times.agree_s)
        session.ours = ours
        self._sessions[peer, nonce] = session
        return self._send_offer(session, now)

    def gathered(
        self, peer: PeerId, nonce: bytes, ours: tuple[ExternalAddress, ...], *, now: float
    ) -> list[Effect]:
        """Continue after `Gather`, with our own candidates in the order of the streams."""
        session = self._gathering(peer, nonce)
        if session is None:
            return []
        assert len(ours) == len(session.theirs)
        session.ours = ours
        session.state = _State.ANSWERED
        session.go_at = session.ends = now + self._times.go_s
        return self._send_answer(session, now)

    def delivered(self, peer: PeerId, message: PunchMessage) -> None:
        """Do not send `message` again: `peer` has confirmed that it has it."""
        session = self._sessions.get((peer, message.nonce))
        states = {PunchOffer: _State.OFFERED, PunchAnswer: _State.ANSWERED}
        if session is not None and session.state is states.get(type(message)):
            session.resend_at = math.inf

    def refuse(self, peer: PeerId, nonce: bytes, reason: str, *, now: float) -> list[Effect]:
        """Refuse after `Gather`. The peer learns the reason."""
        session = self._gathering(peer, nonce)
        return [] if session is None else self._refused(session, reason, now)

    def receive(
        self, peer: PeerId, message: PunchMessage, sightings: Sightings, *, now: float
    ) -> list[Effect]:
        """Handle a message whose sender is proven to be `peer`.

        Raises:
            RemoteProtocolError: the message contradicts what we sent.
        """
        session = self._sessions.get((peer, message.nonce))
        match message:
            case PunchOffer() if session is None:
                return self._new_offer(peer, message, sightings, now)
            case _ if session is None:
                return []  # The agreement has been forgotten.
            case _ if session.state is _State.OVER:
                return self._say_again(session, message)
            case PunchOffer():
                return self._repeated_offer(session, message, now)
            case PunchAnswer():
                return self._answer(session, message, sightings, now)
            case PunchGo():
                answered = session.state is _State.ANSWERED
                return self._begin(session, now, now) if answered else []
            case PunchRefusal():
                if session.state is not _State.OFFERED:
                    return []
                return self._fail(session, f"it refused: {message.reason}", now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: send again, begin without a `go`, fail, or forget."""
        effects: list[Effect] = []
        for session in list(self._sessions.values()):
            if session.state is _State.OVER:
                if now >= session.ends:
                    del self._sessions[session.peer, session.nonce]
            elif now >= session.go_at:
                effects += self._begin(session, now, now)
            elif now >= session.ends:
                effects += self._fail(session, "the peer did not answer in time", now)
            elif now >= session.resend_at:
                offered = session.state is _State.OFFERED
                send = self._send_offer if offered else self._send_answer
                effects += send(session, now)
        return effects

    def _new_offer(
        self, peer: PeerId, offer: PunchOffer, sightings: Sightings, now: float
    ) -> list[Effect]:
        if not self._allowance.consume(peer, 1, now):
            return []  # An answer would allow a flood of offers to cause a flood of answers.
        session = _Session(
            peer, offer.nonce, offer.about, _State.GATHERING, now + self._times.agree_s
        )
        self._sessions[peer, offer.nonce] = session
        session.offers_at[offer.attempt] = now
        session.theirs = offer.candidates
        if reason := refusal(offer.candidates, sightings):
            return self._refused(session, reason, now)
        return [Gather(peer, offer.nonce, offer.about, len(offer.candidates))]

    def _repeated_offer(self, session: _Session, offer: PunchOffer, now: float) -> list[Effect]:
        if session.state is _State.OFFERED:
            return []  # The peer sends our own offer back.
        if offer.attempt in session.offers_at:
            return []  # The network has doubled the message.
        session.offers_at[offer.attempt] = now
        return self._send_answer(session, now) if session.state is _State.ANSWERED else []

    def _answer(
        self, session: _Session, answer: PunchAnswer, sightings: Sightings, now: float
    ) -> list[Effect]:
        if session.state is not _State.OFFERED:
            return []
        sent_at = session.offers_at.get(answer.attempt)
        if sent_at is None or len(answer.candidates) != len(session.ours):
            raise RemoteProtocolError("an answer does not match our offer", peer=session.peer)
        if reason := refusal(answer.candidates, sightings):
            return self._fail(session, reason, now)
        round_trip_s = max(now - sent_at - answer.spent_ms / 1000, 0.0)
        session.theirs = answer.candidates
        session.last_word = PunchGo(session.nonce)
        go = self._send(session, session.last_word)
        return [*go, *self._begin(session, now + round_trip_s / 2, now)]

    def _begin(self, session: _Session, start_at: float, now: float) -> list[Effect]:
        dials = session.state is _State.OFFERED
        self._end(session, now)
        key = session.peer, session.nonce, session.about
        return [Punch(*key, start_at, session.theirs, dials)]

    def _refused(self, session: _Session, reason: str, now: float) -> list[Effect]:
        told = reason.encode()[:REASON_BYTES_MAX].decode("utf-8", "ignore")
        session.last_word = PunchRefusal(session.nonce, told)
        self._end(session, now)
        key = session.peer, session.nonce, session.about
        return [*self._send(session, session.last_word), Failed(*key, reason, ours=False)]

    def _fail(self, session: _Session, reason: str, now: float) -> list[Effect]:
        ours = session.state is _State.OFFERED
        self._end(session, now)
        return [Failed(session.peer, session.nonce, session.about, reason, ours)]

    def _end(self, session: _Session, now: float) -> None:
        session.state = _State.OVER
        session.resend_at = session.go_at = math.inf
        session.ends = now + self._times.remember_s

    def _say_again(self, session: _Session, message: PunchMessage) -> list[Effect]:
        """Repeat our last message, since the peer did not receive it."""
        repeated = PunchAnswer if isinstance(session.last_word, PunchGo) else PunchOffer
        if session.last_word is None or not isinstance(message, repeated):
            return []
        return self._send(session, session.last_word)

    def _send_offer(self, session: _Session, now: float) -> list[Effect]:
        attempt = len(session.offers_at)
        session.resend_at = now + self._times.resend_s if attempt + 1 < ATTEMPTS_MAX else math.inf
        session.offers_at[attempt] = now
        offer = PunchOffer(session.nonce, session.about, attempt, session.ours)
        return self._send(session, offer)

    def _send_answer(self, session: _Session, now: float) -> list[Effect]:
        session.resend_at = now + self._times.resend_s
        attempt, received_at = max(session.offers_at.items())
        spent_ms = min(round((now - received_at) * 1000), SPENT_MS_MAX)
        return self._send(session, PunchAnswer(session.nonce, attempt, spent_ms, session.ours))

    def _send(self, session: _Session, message: PunchMessage) -> list[Effect]:
        session.sends += 1
        return [Send(session.peer, message)] if session.sends <= SENDS_MAX else []

    def _gathering(self, peer: PeerId, nonce: bytes) -> _Session | None:
        session = self._sessions.get((peer, nonce))
        return session if session is not None and session.state is _State.GATHERING else None
