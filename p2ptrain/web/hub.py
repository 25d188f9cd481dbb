"""Watch the node and its history while somebody looks at the page, and tell all readers.

While there are no readers, this module asks nothing. A reader of the stream gets a new outer step
within a second, and the state at most once a second. A large state is sent less often, because the
bytes of an hour are bounded. The node is asked for its status just before the state is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from p2ptrain.archive.home import Home
from p2ptrain.errors import P2PTrainError
from p2ptrain.web import charts
from p2ptrain.web.facts import Facts
from p2ptrain.web.history import History, Row
from p2ptrain.web.node_client import ask
from p2ptrain.web.state import bounded, content_key, state, to_json
from p2ptrain.web.stream import Clients, Compression, event

LOOK_S = 0.5
"""Seconds between two looks at the history. A look costs 50 µs if nothing has changed."""

STATE_S_MIN, STATE_S_MAX = 1.0, 5.0
"""Shortest and longest time between two states. The page turns grey after 10 s without one."""

BYTES_PER_S = 300.0
"""Compressed bytes that a reader may cost on average: about 1 MB an hour."""

AGAIN_S = 5.0
"""Minimum seconds until an outer step is sent again because reports of its members have arrived."""

ANSWER_S = 2.0
"""Seconds to wait for the node. After that, readers learn how old the last answer is."""

STEPS_MAX = 10
"""Maximum number of new outer steps that are sent at once. A node that catches up has more of them;
a reader then asks for the series again."""

EVENTS_MAX = 50
"""Maximum number of new events that are sent at once. A reader asks for older ones."""

Clock = Callable[[], float]


class ByteBudget:
    """Says when the next state may be sent, from the bytes that were sent before."""

    def __init__(self, bytes_per_s: float = BYTES_PER_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._owed_until_s = 0.0

    def spend(self, count: int, now: float) -> None:
        self._owed_until_s = max(self._owed_until_s, now) + count / self._bytes_per_s

    def allows(self, last_s: float, now: float) -> bool:
        if now < last_s + STATE_S_MIN:
            return False
        return now >= min(self._owed_until_s, last_s + STATE_S_MAX)


@dataclass(slots=True)
class _Sent:
    """The data last sent about an outer step, and the time."""

    data: str
    at_s: float


class Hub:
    def __init__(self, home: Home, clock: Clock = time.monotonic) -> None:
        self.history = History(home.series)
        self.facts = Facts(home, self.history)
        self.clients = Clients()
        self.serial = int(10 * time.time())
        """Grows when the state changes, and is larger in a process that was started later."""
        self._home = home
        self._clock = clock
        self._status: Row | None = None
        self._heard_s = self._asked_s = self._told_s = -1e9
        self._key = ""
        self._asking = trio.Lock()
        self._budget, self._gauge = ByteBudget(), Compression()
        self._version, self._event_id = -1, 0
        self._sent: dict[int, _Sent] = {}
        self._news: list[bytes] = []

    async def look(self, age_s_max: float = STATE_S_MIN) -> None:
        """Ask the node for its status, unless it was asked less than `age_s_max` ago."""
        async with self._asking:
            if self._clock() - self._asked_s < age_s_max:
                return
            self._asked_s = self._clock()
            try:
                reply = await ask(self._home.control, "brief-status")
            except P2PTrainError:
                return
            if "error" not in reply:
                self._status, self._heard_s = bounded(reply), self._clock()
                await self.facts.refresh(self._status)

    @property
    def status(self) -> Row | None:
        return self._status

    @property
    def heard_s_ago(self) -> float | None:
        return None if self._status is None else self._clock() - self._heard_s

    def state(self) -> Row:
        """Return the state with its serial."""
        found = state(self._status, self.heard_s_ago, self.history, self.facts)
        key = f"{self.history.version()} {content_key(found)}"
        if key != self._key:
            self._key, self.serial = key, self.serial + 1
        return {**found, "serial": self.serial}

    def first_event(self) -> bytes:
        """Return the event with which the stream of a new client begins."""
        return event("state", to_json(self.state()))

    async def watch(self) -> None:
        """Send what is new to all clients, for ever."""
        while True:
            if not len(self.clients):
                await self.clients.arrived.wait()
                self._begin()
            await self._send_news()
            await trio.sleep(LOOK_S)

    def _begin(self) -> None:
        """Forget what earlier clients were told: a new client asks for the series itself."""
        self._version, self._told_s = self.history.version(), self._clock()
        newest = self.history.newest_step()
        self._sent = {step: _Sent("", -1e9) for step in (newest - 1, newest)}
        events = self.history.events(None, 1)
        self._event_id = int(str(events[0]["id"])) if events else 0

    async def _send_news(self) -> None:
        now, stepped = self._clock(), False
        version = self.history.version()
        if version != self._version or self._owes_reports(now):
            self._version = version
            stepped = self._send_steps(now)
            self._send_events()
            self._offer(now)
        if stepped or self._budget.allows(self._told_s, now):
            serial = self.serial
            with trio.move_on_after(ANSWER_S):
                await self.look(0.0 if stepped else STATE_S_MIN / 2)
            data = to_json(self.state())
            if stepped or self.serial != serial or now >= self._told_s + STATE_S_MAX:
                self._told_s = now
                self._news.append(event("state", data))
                self._offer(now)

    def _owes_reports(self, now: float) -> bool:
        """Return whether it is time to look again at a step whose reports may have arrived."""
        return any(AGAIN_S <= now - each.at_s < 2 * AGAIN_S for each in self._sent.values())

    def _send_steps(self, now: float) -> bool:
        """Send new outer steps, and the newest two again if reports have arrived since. Return
        whether there is a new one."""
        newest, before = self.history.newest_step(), max(self._sent)
        for row in self.history.steps(max(min(self._sent), newest - STEPS_MAX + 1)):
            step = int(str(row["step"]))
            sent = self._sent.get(step)
            if sent is None or (sent.data and now >= sent.at_s + AGAIN_S):
                self._send_step(row, sent, now)
            elif not sent.data:  # The client has it from the series.
                self._sent[step] = _Sent(to_json(charts.step_event(self.history, row)), -1e9)
        kept = range(newest - 1, newest + 1)
        self._sent = {step: each for step, each in self._sent.items() if step in kept}
        self._sent.setdefault(newest, _Sent("", -1e9))
        return newest > before

    def _send_step(self, row: Row, sent: _Sent | None, now: float) -> None:
        data = to_json(charts.step_event(self.history, row))
        if sent is None or data != sent.data:
            self._sent[int(str(row["step"]))] = _Sent(data, now)
            self._news.append(event("step", data))

    def _send_events(self) -> None:
        for row in self.history.events_after(self._event_id, EVENTS_MAX):
            self._event_id = int(str(row["id"]))
            self._news.append(event("event", to_json(charts.event(row))))

    def _offer(self, now: float) -> None:
        """Send all news at once: a reader's queue has room for a few looks, not for many events."""
        data, self._news = b"".join(self._news), []
        if data:
            self._budget.spend(len(self._gauge(data)), now)
            self.clients.offer(data)
