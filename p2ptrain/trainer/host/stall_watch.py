"""When a silent trainer is stuck, and when restarting it has become pointless.

Both are values fed with what happened and the time; neither reads a clock or touches a process.

A trainer that trains or evaluates reports every inner step, so its usual pace is known and silence
can be judged by it.  One that stands by says nothing for as long as it likes.  Before the first
inner step on another θ its optimizer's state passes through the disk, whose pace is nobody's: that
is granted by the model's size.  So are the first step, a loss that is measured before it, and the
second step, since the pace of the first says nothing: CUDA is loaded in it, ranks are connected,
the model compiled.  A pace is not known yet, but how much there is to compute is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from p2ptrain.ipc import frames
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.flops import flops_per_step, peak_flops_per_s

_PACES = 8
LOOKS_S = 5.0
"""Whoever looks every second, and has not looked for longer than this, stood still itself."""

STATE_BYTES = 8
"""Of each parameter: see `inner_format`."""

SLOWEST_MFU = 0.05
"""Of a device whose peak in bf16 is known, in bf16; a machine that does worse is of little use to
its run."""
SLOWEST_GPU_FLOPS_PER_S = 2e12
SLOWEST_CPU_FLOPS_PER_S = 2e9
"""Of a rank; one thread of an old machine that others use, too, makes as much."""
FORWARD_SHARE = 1 / 3
"""Of an inner step: so much of it is a measurement of the loss."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a trainer that owes an answer may be silent.

    `start_limit_s`, until two inner steps are done: loading torch and CUDA, or compiling, on a
    slow disk and a crowded machine; and what the step's arithmetic takes a device that is used
    badly.  Then `silence_factor` usual inner steps, since throttling and neighbours slow a step
    several times over but not twenty times; never less than `silence_floor_s`, since a machine that
    swaps stalls everything for some seconds.
    """

    start_limit_s: float = 180.0
    silence_floor_s: float = 15.0
    silence_factor: float = 20.0
    disk_bytes_per_s: float = 100e6
    """At least, of a disk of any kind: what is written is read once more for its checksum."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What an inner step takes of the ranks: `flops` of arithmetic, in `bf16` or in fp32, by a
    model that is `compiled` at its first use, and once more for its first evaluation, which keeps
    nothing for a backward pass.
    """

    flops: float = 0.0
    bf16: bool = False
    compiled: bool = False

    @classmethod
    def of(cls, config: TrainerConfig) -> StepCost:
        return cls(flops_per_step(config), config.precision == "bf16", config.compile)

    def slowest_s(self, device: str, ranks: int) -> float:
        """How long it may take ranks that have each a device of this name."""
        peak = peak_flops_per_s(device) if self.bf16 else None
        unknown = SLOWEST_CPU_FLOPS_PER_S if device == "cpu" else SLOWEST_GPU_FLOPS_PER_S
        return self.flops / (ranks * (unknown if peak is None else SLOWEST_MFU * peak))


class StallWatch:
    """Feed it every frame sent and received; ask `overdue` now and then."""

    def __init__(self, now: float, patience: Patience, cost: StepCost = StepCost()) -> None:
        self._patience = patience
        self._cost = cost
        self._slowest_step_s = 0.0
        self._heard_at = now
        self._looked_at: float | None = None
        self._greeted = False
        self._paused = False
        self._blocks_due = 0
        self._owes_report = False
        """After the last of these blocks; not of those that it trains ahead. What it was ready with
        before it reads of more is no report of them."""
        self._parameters = 0
        self._moves_state = False
        self._evaluations: dict[int, int] = {}
        self._compiles_to_evaluate = cost.compiled
        self._is_warm = False
        self._paces_s: deque[float] = deque(maxlen=_PACES)

    def sent(self, frame: frames.Frame, now: float) -> None:
        if not self._owed:
            self._heard_at = now
        match frame:
            case frames.Train(block_paths=block_paths, ahead=ahead):
                self._owes_report = not ahead
                self._blocks_due += len(block_paths)
            case frames.Rebase():
                self._owes_report = True  # Now, or once it is ready; or it is told of more at once.
            case frames.Evaluate(request, block_paths):
                self._evaluations[request] = len(block_paths)
            case frames.Load():
                self._blocks_due, self._owes_report, self._moves_state = 0, False, True
            case frames.Merge():
                self._moves_state = True
            case frames.Pause():
                self._paused = True
            case frames.Resume():
                self._paused = False

    def received(self, frame: frames.Frame, now: float) -> None:
        match frame:
            case frames.Hello():
                self._greeted, self._parameters = True, frame.parameters
                self._slowest_step_s = self._cost.slowest_s(frame.device, frame.ranks)
            case frames.Progress():
                self._blocks_due = max(0, self._blocks_due - 1)
                if self._is_warm and not (self._moves_state and self._paces_s):
                    self._paces_s.append(now - self._heard_at)
                self._is_warm, self._moves_state = True, False
            case frames.FragmentReady():
                self._owes_report &= self._blocks_due > 0
                self._moves_state = False
            case frames.Evaluated(request, _, _):
                self._evaluations.pop(request, None)
                self._compiles_to_evaluate = False
            case frames.Failed(_, _, None):
                self._blocks_due, self._owes_report = 0, False
            case frames.Failed(_, _, int(request)):
                self._evaluations.pop(request, None)
        self._heard_at = now

    @property
    def _owed(self) -> bool:
        """Whether we wait for something that the trainer must say."""
        training = (self._blocks_due > 0 or self._owes_report) and not self._paused
        return not self._greeted or training or bool(self._evaluations)

    @property
    def limit_s(self) -> float:
        """How long a silence is borne: many usual steps, and the silent work of an evaluation and
        of the disk.
        """
        state_bytes = self._moves_state * STATE_BYTES * self._parameters
        return self._usual_limit_s + state_bytes / self._patience.disk_bytes_per_s

    @property
    def _usual_limit_s(self) -> float:
        evaluated = sum(self._evaluations.values())
        if not self._paces_s:
            steps = 1 + FORWARD_SHARE * evaluated
            return self._patience.start_limit_s + steps * self._slowest_step_s
        pace_s = max(self._paces_s)
        silence_s = max(self._patience.silence_floor_s, self._patience.silence_factor * pace_s)
        if evaluated and self._compiles_to_evaluate:
            silence_s += self._patience.start_limit_s
        return silence_s + 2 * evaluated * pace_s

    def look(self, now: float) -> str | None:
        """`overdue`, for whoever asks every second.

        When it did not, it was stopped, or had no core, and so perhaps was the trainer; what this
        has said meanwhile is yet to be read. Such a silence says nothing: its time is given back.
        """
        before, self._looked_at = self._looked_at, now
        if before is not None and now > before + LOOKS_S:
            self._heard_at = min(now, self._heard_at + now - before - LOOKS_S)
        return self.overdue(now)

    def overdue(self, now: float) -> str | None:
        """Why the trainer counts as stuck, in words; None if it does not."""
        silent_s = now - self._heard_at
        if not self._owed or silent_s <= self.limit_s:
            return None
        doing = "training" if self._greeted else "starting"
        return f"{doing}, and silent for {silent_s:.0f} s where {self.limit_s:.0f} s is the limit"


@dataclass(slots=True)
class RestartBudget:
    """At most `restarts_max` restarts in any `window_s`, and as many in a row after trainers of
    whose work nothing was offered: one that dies at every start, or at the same block every time,
    would otherwise burn the volunteer's power for nothing. However slowly it does so, since a hang
    is noticed only after minutes. A rare crash in a long run is forgiven."""

    restarts_max: int = 5
    window_s: float = 600.0
    in_vain: int = field(default=0, init=False)
    """Trainers in a row of whose work nothing was offered."""
    _spent: deque[float] = field(default_factory=deque, init=False)

    def spend(self, now: float, *, useful: bool) -> bool:
        """Take one restart if there is one left. `useful`: work of the last trainer was offered."""
        while self._spent and now - self._spent[0] >= self.window_s:
            self._spent.popleft()
        self.in_vain = 0 if useful else self.in_vain + 1
        if max(len(self._spent), self.in_vain - 1) >= self.restarts_max:
            return False
        self._spent.append(now)
        return True
