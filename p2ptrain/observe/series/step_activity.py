"""Add up what this node did in each outer step, from the records that it writes to its journal.

So the sums agree with the journal by construction. An outer step lasts from one `committed` record
to the next, by the monotonic clock of the records. The first one begins with `caught-up`: before
it, the node only replayed what others had done. A record that is not of the usual form is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Record = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One outer step of this node. `step` is the number of outer steps that θ contained at its end.
    Times are in milliseconds, and are rounded so that their sums over all steps are exact."""

    step: int
    skipped: bool
    train_ms: int
    data_wait_ms: int
    wait_ms: int
    """The time that is left when all other times are subtracted; 0 if training went on during
    exchanges and there is nothing left."""
    exchange_ms: int
    """Time of exchanges, including those that failed."""
    fetch_ms: int
    apply_ms: int
    bytes_up: int
    bytes_down: int
    loss: float | None
    gradient_norm: float | None
    mfu: float | None
    learning_rate: float | None
    cosine: float | None
    quantisation_error: float | None
    device: str
    paths: Mapping[str, str]
    """How this node was connected to its neighbours in the exchange: "direct", "punched" or
    "relayed"."""


@dataclass(slots=True)
class _Means:
    """Sums of the inner steps since the last outer step, for means."""

    count: dict[str, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: object) -> None:
        if (number := _number(value)) is not None:
            self.count[name] = self.count.get(name, 0) + 1
            self.total[name] = self.total.get(name, 0.0) + number

    def mean(self, name: str) -> float | None:
        return self.total[name] / self.count[name] if name in self.count else None


SPENT = ("train_ms", "data_wait_ms", "exchange_ms", "fetch_ms", "apply_ms")


@dataclass(slots=True)
class StepActivity:
    """Adds up the records of one life of a node. Used by the thread of the event loop."""

    _since_s: float | None = None
    _device: str = ""
    _seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each kind since the last outer step."""
    _rest_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each kind that rounding left over in earlier steps: less than 1 ms each."""
    _means: _Means = field(default_factory=_Means)
    _learning_rate: float | None = None
    _exchange: dict[str, object] = field(default_factory=dict)
    """The record of the newest exchange in this outer step that succeeded."""
    _exchange_since_s: float | None = None
    _bytes_up: int = 0
    _bytes_down: int = 0
    _ways: dict[str, str] = field(default_factory=dict)
    _paths: dict[str, str] = field(default_factory=dict)

    def note(self, record: Record) -> StepFacts | None:
        """Take in a record of the journal. Return the facts of the outer step that it ends, if
        any."""
        match record.get("event"):
            case "caught-up":
                self._begin(_number(record.get("monotonic_s")))
            case "trainer-config":
                self._device = str(record.get("device"))
            case "inner-step":
                self._note_inner_step(record)
            case "relayed" | "punched" as way if record.get("about") == "reduce":
                self._ways[str(record.get("peer"))] = way
            case "exchange-started":
                self._exchange_since_s = _number(record.get("monotonic_s"))
                self._ways = {}
            case "exchange-done":
                self._note_exchange(record)
            case "exchange-failed":
                self._note_failure(record)
            case "committed":
                return self._end(record)
        return None

    def _begin(self, now_s: float | None) -> None:
        self._since_s, self._means = now_s, _Means()
        self._bytes_up = self._bytes_down = 0
        self._exchange, self._paths = {}, {}

    def _spend(self, name: str, seconds: object) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + max(0.0, _number(seconds) or 0.0)

    def _note_inner_step(self, record: Record) -> None:
        seconds, wait_s = _number(record.get("seconds")), _number(record.get("data_wait_s"))
        self._spend("train_ms", (seconds or 0.0) - (wait_s or 0.0))
        self._spend("data_wait_ms", wait_s)
        for name in ("loss", "gradient_norm", "mfu"):
            self._means.add(name, record.get(name))
        self._learning_rate = _number(record.get("learning_rate"))

    def _note_exchange(self, record: Record) -> None:
        self._spend("exchange_ms", record.get("seconds"))
        self._bytes_up += int(_number(record.get("sent_bytes")) or 0)
        self._bytes_down += int(_number(record.get("received_bytes")) or 0)
        self._exchange, self._exchange_since_s = dict(record), None
        traffic = record.get("sent_bytes_per_s_by_peer")
        neighbours = traffic if isinstance(traffic, Mapping) else {}
        self._paths = {str(peer): self._ways.get(str(peer), "direct") for peer in neighbours}

    def _note_failure(self, record: Record) -> None:
        since, now = self._exchange_since_s, _number(record.get("monotonic_s"))
        if since is not None and now is not None:
            self._spend("exchange_ms", now - since)
        self._exchange_since_s = None

    def _end(self, record: Record) -> StepFacts | None:
        step, now = record.get("step"), _number(record.get("monotonic_s"))
        if self._since_s is None or now is None or type(step) is not int:
            self._seconds.clear()
            return None
        self._spend("fetch_ms", record.get("fetch_s"))
        self._spend("apply_ms", record.get("apply_s"))
        spent_s = sum(self._seconds.get(name, 0.0) for name in SPENT)
        self._spend("wait_ms", now - self._since_s - spent_s)
        facts = StepFacts(
            step=step + 1,
            skipped=bool(record.get("skipped")),
            train_ms=self._whole_ms("train_ms"),
            data_wait_ms=self._whole_ms("data_wait_ms"),
            wait_ms=self._whole_ms("wait_ms"),
            exchange_ms=self._whole_ms("exchange_ms"),
            fetch_ms=self._whole_ms("fetch_ms"),
            apply_ms=self._whole_ms("apply_ms"),
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            loss=self._means.mean("loss"),
            gradient_norm=self._means.mean("gradient_norm"),
            mfu=self._means.mean("mfu"),
            learning_rate=self._learning_rate,
            cosine=_number(self._exchange.get("cosine")),
            quantisation_error=_number(self._exchange.get("quantisation_error")),
            device=self._device,
            paths=self._paths,
        )
        self._begin(now)
        return facts

    def _whole_ms(self, name: str) -> int:
        """Return the whole milliseconds of this kind, and keep the rest for the next step."""
        seconds = self._seconds.pop(name, 0.0) + self._rest_s.get(name, 0.0)
        whole = int(1000 * seconds)
        self._rest_s[name] = seconds - whole / 1000
        return whole


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
