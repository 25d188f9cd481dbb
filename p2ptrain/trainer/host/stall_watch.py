"""Decide when a silent trainer is stuck, and when restarting it has become pointless.

`StallWatch` and `RestartBudget` are told all events and times, and do not read a clock themselves.

A trainer reports every inner step, so its usual pace is known, and the limit for its silence
follows from the pace. The silence of an idle trainer has no limit. Before the first inner step on
a new θ, the trainer writes or reads its optimizer's state; the time limit for that depends on the
model's size. The pace is unknown until the second inner step has ended, because the first one also
loads CUDA, connects the ranks and compiles the model. Until then, the limit depends on the amount
of arithmetic in a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from p2ptrain.ipc import frames
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.host.flops import flops_per_token, peak_flops_per_s

_PACES = 8
LOOKS_S = 5.0
"""Longest usual time between two calls of `check_overdue`, which is called every second. A longer
gap means that the node's own process was stopped, or did not get a core."""

STATE_BYTES = 8
"""Bytes of optimizer state per parameter: see `inner_format`."""

SLOWEST_MFU = 0.05
"""Lowest share of the peak that a device with a known bf16 peak is expected to reach. A slower
machine is of little use to its run."""
SLOWEST_GPU_FLOPS_PER_S = 2e12
SLOWEST_CPU_FLOPS_PER_S = 2e9
"""Lowest speeds expected of a rank if the peak of its device is unknown. Even one thread of an old
and busy machine reaches SLOWEST_CPU_FLOPS_PER_S."""
FORWARD_SHARE = 1 / 3
"""Time that it takes to measure the loss of a block, as a share of the time of an inner step."""


@dataclass(frozen=True, slots=True)
class AnswerTimeout:
    """How long a trainer that owes an answer can be silent.

    Until two inner steps are done, the limit is `start_limit_s` plus the longest time that the
    step's arithmetic should take (`StepCost.slowest_s`). `start_limit_s` covers loading torch and
    CUDA, or compiling, on a slow disk and a busy machine. Afterwards the limit is `silence_factor`
    times a usual inner step: throttling and other programs can make a step several times as long,
    but not twenty times. The limit is at least `silence_floor_s`, since swapping can stop all
    programs for a few seconds.
    """

    start_limit_s: float = 180.0
    silence_floor_s: float = 15.0
    silence_factor: float = 20.0
    disk_bytes_per_s: float = 100e6
    """Lowest expected rate of a disk, in bytes per second. It is so low that the resulting time
    limit also covers a second read of the optimizer's state, for its checksum."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of an inner step: `flops` operations, in bf16 if `bf16`, else in fp32. A `compiled`
    model is compiled at its first inner step, and again at its first evaluation, which has no
    backward pass."""

    flops: float = 0.0
    bf16: bool = False
    compiled: bool = False

    @classmethod
    def of(cls, config: TrainerConfig) -> StepCost:
        tokens = config.inner.batch_sequences * config.model.sequence
        flops = tokens * flops_per_token(config.model)
        return cls(flops, config.precision == "bf16", config.compile)

    def slowest_s(self, device: str, ranks: int) -> float:
        """Return the longest time in seconds that a step may take on `ranks` ranks, each with a
        `device`."""
        peak = peak_flops_per_s(device) if self.bf16 else None
        unknown = SLOWEST_CPU_FLOPS_PER_S if device == "cpu" else SLOWEST_GPU_FLOPS_PER_S
        return self.flops / (ranks * (unknown if peak is None else SLOWEST_MFU * peak))


class StallWatch:
    """Detects a stuck trainer. Report every frame with `sent` or `received`, and call
    `check_overdue` about every second."""

    def __init__(self, now: float, patience: AnswerTimeout, cost: StepCost = StepCost()) -> None:
        self._patience = patience
        self._cost = cost
        self._slowest_step_s = 0.0
        self._heard_at = now
        self._looked_at: float | None = None
        self._greeted = False
        self._blocks_due = 0
        self._owes_report = False
        """Whether the trainer must send FragmentReady after its last block. It need not after
        `ahead` blocks, which it trains during an average. An earlier report does not count."""
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
                self._owes_report = True  # The report comes now, or after the due blocks.
            case frames.Evaluate(request, block_paths):
                self._evaluations[request] = len(block_paths)
            case frames.Generate(request, _, tokens_max):
                # Each token costs as much as a measured block. Requests are not negative, so ~
                # tells them from those of Evaluate.
                self._evaluations[~request] = tokens_max
            case frames.Load():
                self._blocks_due, self._owes_report, self._moves_state = 0, False, True
            case frames.Merge():
                self._moves_state = True

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
            case frames.Generated(request):
                self._evaluations.pop(~request, None)
            case frames.Failed(_, _, None):
                self._blocks_due, self._owes_report = 0, False
            case frames.Failed(_, _, int(request)):
                self._evaluations.pop(request, None)
        self._heard_at = now

    @property
    def _owed(self) -> bool:
        """Whether the trainer must send something."""
        training = self._blocks_due > 0 or self._owes_report
        return not self._greeted or training or bool(self._evaluations)

    @property
    def limit_s(self) -> float:
        """Longest allowed silence in seconds: the time of many usual steps, of the evaluations, and
        of writing or reading the optimizer's state."""
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

    def check_overdue(self, now: float) -> str | None:
        """Return what `overdue` returns, but do not count a gap between two calls as silence. Call
        this every second.

        A gap longer than `LOOKS_S` means that the node was stopped or did not get a core. The
        trainer may have been stopped as well, or the node has not read the trainer's frames yet.
        """
        before, self._looked_at = self._looked_at, now
        if before is not None and now > before + LOOKS_S:
            self._heard_at = min(now, self._heard_at + now - before - LOOKS_S)
        return self.overdue(now)

    def overdue(self, now: float) -> str | None:
        """Return in words why the trainer counts as stuck; None if it does not."""
        silent_s = now - self._heard_at
        if not self._owed or silent_s <= self.limit_s:
            return None
        doing = "training" if self._greeted else "starting"
        return f"{doing}, but silent for {silent_s:.0f} s; the limit is {self.limit_s:.0f} s"


@dataclass(slots=True)
class RestartBudget:
    """Limits restarts: at most `restarts_max` within `window_s`, and at most `restarts_max` in a
    row while no trainer's work is offered to the other peers.

    Without limits, a trainer that dies at every start, or always at the same block, would waste the
    volunteer's electricity. Only the second limit stops a trainer that hangs at every start,
    because few hangs fit into `window_s`. Rare crashes in a long run are not added up.
    """

    restarts_max: int = 5
    window_s: float = 600.0
    in_vain: int = field(default=0, init=False)
    """Number of trainers since the last one whose work was offered. Written by `spend`."""
    _spent: deque[float] = field(default_factory=deque, init=False)

    def spend(self, now: float, *, useful: bool) -> bool:
        """Return whether a restart is allowed now, and count it if so. `useful` says whether work
        of the last trainer was offered to the other peers."""
        while self._spent and now - self._spent[0] >= self.window_s:
            self._spent.popleft()
        self.in_vain = 0 if useful else self.in_vain + 1
        if max(len(self._spent), self.in_vain - 1) >= self.restarts_max:
            return False
        self._spent.append(now)
        return True
