"""The line that a node prints for each outer step, and the estimate of the time left.

    step 435/600  loss 2.38 (held out 2.36)  21k tok/s  exchange 0.1 s, 2 peers  yours 15k of 31k  ETA 14 min

A line leaves out what the node does not know. All tokens in it are those of this one outer step, so
a node that catches up shows the tokens of each step that it replays. This module only formats and
estimates; it does not know where the numbers come from.
"""  # noqa: E501

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from p2ptrain.errors import counted
from p2ptrain.observe.states import duration

KNOWN_MIN = 3
"""Number of measured outer steps before there is an estimate."""

KNOWN_MAX = 20
"""Number of latest outer steps that the estimate uses."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """The facts about the outer step that made θ the θ of `step`. A value of None is unknown."""

    step: int
    steps: int
    skipped: bool = False
    """Whether the members skipped the step, so that it did not change θ."""
    loss: float | None = None
    """Loss of this node's newest inner step, in nats per token."""
    held_out: float | None = None
    """Newest known loss of θ on held-out data, in nats per token."""
    tokens: int | None = None
    """Tokens that all participants trained on in this outer step."""
    own_tokens: int = 0
    """Part of `tokens` that this node trained on."""
    seconds: float | None = None
    """Duration of the outer step."""
    exchange_s: float | None = None
    """Duration of the exchange, if this node took part in it."""
    peers: int = 0
    """Number of participants."""
    left: int = 0
    """Number of outer steps that this node still has to replay."""
    eta_s: float | None = None
    """Estimated seconds until the run is complete."""
    note: str = ""
    """A remark for the owner beside the numbers, such as "paused"."""

    def __str__(self) -> str:
        parts = [
            f"step {self.step}/{self.steps}",
            "skipped" if self.skipped else "",
            self._losses(),
            self._rate(),
            self._exchange(),
            self._tokens(),
            f"catching up, {counted(self.left, 'update')} left" if self.left else "",
            "" if self.eta_s is None else f"ETA {duration(self.eta_s)}",
            self.note,
        ]
        return "  ".join(part for part in parts if part)

    def _losses(self) -> str:
        held_out = "" if self.held_out is None else f"held out {self.held_out:.2f}"
        if self.loss is None:
            return held_out
        return f"loss {self.loss:.2f}" + (f" ({held_out})" if held_out else "")

    def _rate(self) -> str:
        if not self.tokens or not self.seconds:
            return ""
        return f"{short(self.tokens / self.seconds)} tok/s"

    def _exchange(self) -> str:
        peers = counted(self.peers, "peer") if self.peers else ""
        took = "" if self.exchange_s is None else f"exchange {self.exchange_s:.1f} s"
        return ", ".join(part for part in (took, peers) if part)

    def _tokens(self) -> str:
        if not self.tokens:
            return ""
        if not self.own_tokens:
            return f"{short(self.tokens)} tokens"
        return f"yours {short(self.own_tokens)} of {short(self.tokens)}"


def short(count: float) -> str:
    """Return a number with at least two digits and a unit: "850", "2.1k", "21k", "1.3M"."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            digits = 1 if count < 10 * scale else 0
            return f"{count / scale:.{digits}f}{unit}"
    return f"{count:.0f}"


@dataclass(slots=True)
class Pace:
    """Measures how long outer steps take. Only steps that this node follows as they happen count:
    replayed steps are much faster."""

    last: tuple[int, float] | None = None
    """The newest outer step, and the time of its end by the local clock, in seconds."""
    known_s: deque[float] = field(default_factory=lambda: deque(maxlen=KNOWN_MAX))

    def note(self, step: int, now: float, *, replayed: bool) -> float | None:
        """Note that `step` has ended at `now`. Return its duration in seconds, if it was measured
        from the end of the step before it."""
        before, self.last = self.last, None if replayed else (step, now)
        if replayed or before is None or before[0] != step - 1:
            return None
        self.known_s.append(now - before[1])
        return now - before[1]

    def eta_s(self, steps_left: int) -> float | None:
        """Return the estimated seconds for `steps_left` more outer steps. Return None if there are
        none left, or if too few steps have been measured."""
        if steps_left <= 0 or len(self.known_s) < KNOWN_MIN:
            return None
        return steps_left * median(self.known_s)
