"""Who was heard under each peer's name, for those who ask whether they are alone.

A key that was copied (a cloned machine, a backup that was started) makes two peers that nobody can
tell apart by name. Each start of a node draws an *incarnation*; heartbeats carry it, and so does
each question. A restart replaces the incarnation before for good, while of two that live both go
on being heard. Here it is only counted who was heard how often; the asker judges (`loneliness`).
All times are the hearer's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.crowding import IsMember, most_dispensable, nobody
from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import PeerId
from p2ptrain.node.heartbeat import COUNT_MAX

LIVES_MAX = 32
"""Incarnations remembered of one peer: two that live, and others, whose old words somebody may
gossip again to make us believe that they live."""

PEERS_MAX = 4096
"""As many as the peer table has. Of a member that was forgotten, old words would be news again."""

AGAIN_MS_MAX = 30_000
"""Nobody is told to wait longer than this before it asks again."""

NAMESAKE_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Question:
    """Who else was heard under my name? Whoever is only `starting` is not counted as heard: if it
    is refused, that need not concern the other.
    """

    incarnation: int
    starting: bool


@dataclass(frozen=True, slots=True)
class Namesake:
    """A process that spoke as the asker of late, `times` in all. If it lives it speaks again within
    `again_ms`; `older` if it was heard here before the asker was.
    """

    incarnation: int
    times: int
    again_ms: int
    older: bool


@dataclass(slots=True)
class _Life:
    """How often an incarnation was heard, and until when it is to speak again if it lives; the
    highest serial of its heartbeats that was heard, and that was taken in.
    """

    times: int = 0
    due_s: float = 0.0
    heard: int = -1
    taken: int = -1


@dataclass(slots=True)
class Namesakes:
    """Where there are too many peers, those longest not heard of are forgotten, members last."""

    is_member: IsMember = nobody
    _lives: dict[PeerId, dict[int, _Life]] = field(default_factory=dict)
    """The peers that were heard of last come last. Of each by incarnation, the first heard first.
    """

    def hear(
        self, peer: PeerId, incarnation: int, now: float, again_s: float, serial: int | None = None
    ) -> bool:
        """A word of `peer`; if it lives, the next comes within `again_s`. False if it is no new
        one: a heartbeat, which anybody can gossip again, has a `serial`; a question has none.
        """
        life = self._life(peer, incarnation)
        if serial is not None:
            if serial <= life.heard:
                return False
            life.heard = serial
        life.times += 1
        life.due_s = max(life.due_s, now + again_s)
        return True

    def take(self, peer: PeerId, incarnation: int, serial: int) -> bool:
        """Note that a heartbeat is taken in. False if it is not to be: it or a later one of that
        incarnation was before, so it is late, or gossiped again.
        """
        life = self._life(peer, incarnation)
        news = serial > life.taken
        life.taken = max(life.taken, serial)
        return news

    def _life(self, peer: PeerId, incarnation: int) -> _Life:
        lives = self._lives[peer] = self._lives.pop(peer, {})
        if len(self._lives) > PEERS_MAX:
            del self._lives[most_dispensable(self._lives, self.is_member)]
        life = lives.setdefault(incarnation, _Life())
        if len(lives) > LIVES_MAX:
            del lives[next(iter(lives))]
        return life

    def other(self, peer: PeerId, incarnation: int, now: float) -> Namesake | None:
        """Who else than `incarnation` may live as `peer`: of several, the last expected."""
        lives = self._lives.get(peer, {})
        order = list(lives)
        living = [each for each in order if each != incarnation and now < lives[each].due_s]
        if not living:
            return None
        found = max(living, key=lambda each: lives[each].due_s)
        older = incarnation not in lives or order.index(found) < order.index(incarnation)
        again_ms = min(AGAIN_MS_MAX, int(1000 * (lives[found].due_s - now)) + 1)
        return Namesake(found, lives[found].times, again_ms, older)


def encode_question(question: Question) -> bytes:
    return pack({"incarnation": question.incarnation, "starting": question.starting})


def decode_question(data: bytes) -> Question:
    """Raises RemoteProtocolError for anything that `encode_question` does not make."""
    wire = fields(unpack(data, bytes_max=NAMESAKE_BYTES_MAX), incarnation=int, starting=bool)
    return Question(_count(wire["incarnation"], COUNT_MAX), wire["starting"] is True)


def encode_answer(found: Namesake | None) -> bytes:
    plain = None if found is None else [found.incarnation, found.times, found.again_ms, found.older]
    return pack({"namesake": plain})


def decode_answer(data: bytes) -> Namesake | None:
    """Raises RemoteProtocolError for anything that `encode_answer` does not make."""
    wire = fields(unpack(data, bytes_max=NAMESAKE_BYTES_MAX), namesake=(list, type(None)))
    plain = wire["namesake"]
    if plain is None:
        return None
    assert isinstance(plain, list)
    if len(plain) != 4 or not isinstance(plain[3], bool):
        raise RemoteProtocolError("an answer about namesakes does not have four parts")
    incarnation, times, again_ms, older = plain
    return Namesake(
        _count(incarnation, COUNT_MAX),
        _count(times, COUNT_MAX),
        _count(again_ms, AGAIN_MS_MAX),
        older,
    )


def _count(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RemoteProtocolError("a word about namesakes holds a count out of range")
    return value
