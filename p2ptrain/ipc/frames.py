"""The frames between a node and its trainer, as values.

    node → trainer                            trainer → node
    ─────────────────────────────────────     ─────────────────────────────────────────────
    Load       parameters become θ            Hello          started, with this layout
                                              Resumed        which inner state was restored
    Rates      an amended learning rate
    Train      one inner step per block       Progress       an inner step is done
    Merge      θ moved; it includes your work    FragmentReady  local weights are in the arena
    Rebase     θ moved; keep local work
    Evaluate   loss of θ on these blocks      Evaluated      the loss
    Pause, Resume, Stop                       Failed         cannot continue, and why

Each dataclass checks itself on construction, so neither side can send or accept an invalid value.
The trainer is our own code, but it shares its process with GPU drivers that may corrupt memory, so
we check its frames as carefully as a peer's. `wire` converts frames to bytes; this module defines
only their content.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from p2ptrain.ids import Digest, is_digest

BLOCKS_MAX = 16_384
"""Maximum number of blocks in a frame: four leases of 4,096 blocks, which a trainer may hold after
skipped outer steps. Leases cannot be longer; see `run.manifest`."""
PATH_BYTES_MAX = 4096
"""Maximum bytes of a path: the longest path that Linux opens."""
TEXT_CHARACTERS_MAX = 4096
# The largest valid count: more than any run can reach (10 000 years at 30 inner steps a second),
# and exact as a double.
COUNT_MAX = 2**53


def _check_count(name: str, value: object, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= COUNT_MAX:
        raise ValueError(f"{name} is {value!r}, not a count of at least {least}")


def _check_finite(name: str, value: object) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} is {value!r}, not a finite number")


def _check_text(name: str, value: object, characters_max: int = TEXT_CHARACTERS_MAX) -> None:
    if not isinstance(value, str) or len(value) > characters_max:
        raise ValueError(f"{name} is not a string of at most {characters_max} characters")


def _check_paths(paths: object) -> None:
    if not isinstance(paths, tuple) or len(paths) > BLOCKS_MAX:
        raise ValueError(f"block_paths is not a tuple of at most {BLOCKS_MAX} paths")
    for path in paths:
        if not isinstance(path, str) or len(path.encode()) > PATH_BYTES_MAX:
            raise ValueError(f"a block path is not a string of at most {PATH_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class Load:
    """Load θ of outer step `step` from the arena. Earlier local work was committed or is
    dropped.
    """

    kind: ClassVar[str] = "load"
    step: int

    def __post_init__(self) -> None:
        _check_count("step", self.step)


@dataclass(frozen=True, slots=True)
class Train:
    """Train for outer step `step`: one inner step per block, in this order.

    `first_inner_step` counts from the start of the run and determines the learning rate. Work since
    the last Load still counts: after a Skip, another Train adds to the same pseudo-gradient. With
    `ahead` the trainer does not send FragmentReady after these blocks, because the arena's weights
    are being averaged.

    An eager trainer applies `share` of the work that it has just reported to its own weights, as an
    outer step with `outer_lr` and `outer_momentum` would.
    """

    kind: ClassVar[str] = "train"
    step: int
    block_paths: tuple[str, ...]
    first_inner_step: int
    ahead: bool = False
    share: float = 0.0
    outer_lr: float = 0.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        _check_count("first_inner_step", self.first_inner_step)
        _check_paths(self.block_paths)
        if type(self.ahead) is not bool:
            raise ValueError("ahead is not a bool")
        for name in ("share", "outer_lr", "outer_momentum"):
            _check_finite(name, getattr(self, name))
        if not (0 <= self.share <= 1 and self.outer_lr >= 0 and 0 <= self.outer_momentum < 1):
            raise ValueError("share, outer_lr or outer_momentum is out of range")


@dataclass(frozen=True, slots=True)
class Rates:
    """Use `lr` as the peak inner learning rate from the next inner step on, after an amendment.

    If H was amended, the schedule continues at a different pace. At inner step `since` the schedule
    is where inner step `reached` of the published run would be. From there, every `inner_steps`
    inner steps advance it by `schedule_steps` steps of the published run.
    """

    kind: ClassVar[str] = "rates"
    lr: float
    since: int = 0
    reached: int = 0
    inner_steps: int = 1
    schedule_steps: int = 1

    def __post_init__(self) -> None:
        _check_finite("lr", self.lr)
        if self.lr <= 0:
            raise ValueError(f"lr is {self.lr!r}, which is not a usable learning rate")
        for name, least in (("since", 0), ("reached", 0), ("inner_steps", 1)):
            _check_count(name, getattr(self, name), least=least)
        _check_count("schedule_steps", self.schedule_steps, least=1)

    def schedule_step(self, inner_step: int) -> int:
        """Return the inner step of the published run that the schedule has reached at
        `inner_step`.
        """
        gone = (inner_step - self.since) * self.schedule_steps // self.inner_steps
        return max(0, self.reached + gone)


@dataclass(frozen=True, slots=True)
class Merge:
    """θ is now that of `step`, and includes the work that the trainer reported as ready.

    In the reported fragment, the weights become θ, or are mixed with θ if the run uses mixing. In
    other fragments, the weights shift by the change of θ. Work done after the report is kept.
    """

    kind: ClassVar[str] = "merge"
    step: int

    def __post_init__(self) -> None:
        _check_count("step", self.step)


@dataclass(frozen=True, slots=True)
class Rebase:
    """θ is now that of `step`, without our work: shift the weights by the change of θ, and keep the
    work.

    A trainer that was ready writes its weights again and sends FragmentReady for `step`.
    """

    kind: ClassVar[str] = "rebase"
    step: int

    def __post_init__(self) -> None:
        _check_count("step", self.step)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure the loss of the θ in the arena. Local weights are restored afterwards."""

    kind: ClassVar[str] = "evaluate"
    request: int
    block_paths: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_count("request", self.request)
        _check_paths(self.block_paths)


@dataclass(frozen=True, slots=True)
class Pause:
    """Finish the current inner step, then wait for Resume. Other frames are still processed.

    Trainers support this frame, but nodes do not send it yet: there is no command to pause a
    trainer.
    """

    kind: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True)
class Resume:
    kind: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True)
class Stop:
    """End with exit status 0 after the current inner step."""

    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Hello:
    """The trainer's first frame: all `ranks` have started and the arena fits the layout. Each rank
    computes `micro_batch` sequences at once, and had `memory_bytes` of free memory on its `device`.
    """

    kind: ClassVar[str] = "hello"
    rank: int
    ranks: int
    layout_digest: Digest
    parameters: int
    device: str
    micro_batch: int
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        _check_count("ranks", self.ranks, least=1)
        _check_count("rank", self.rank)
        _check_count("parameters", self.parameters, least=1)
        _check_count("micro_batch", self.micro_batch, least=1)
        _check_count("memory_bytes", self.memory_bytes)
        _check_text("device", self.device)
        if not self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not below {self.ranks}, the number of ranks")
        if not is_digest(self.layout_digest):
            raise ValueError("layout_digest is not a digest")


@dataclass(frozen=True, slots=True)
class Resumed:
    """Sent at the first Load by a trainer that stores its optimizer's state on disk. `state_step`
    is the outer step of the state that was restored, or None if there was none. It is sent again if
    the state could not be stored; `trouble` gives the reason.
    """

    kind: ClassVar[str] = "resumed"
    step: int
    state_step: int | None
    trouble: str = ""

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        if self.state_step is not None:
            _check_count("state_step", self.state_step)
        _check_text("trouble", self.trouble)


@dataclass(frozen=True, slots=True)
class Progress:
    """One inner step is done. `tokens` counts since the last Load; `loss` is this step's mean.

    `data_wait_s` is the time that the step waited for its block; `tokens_per_s` includes that time.
    `mfu` is None if the device's peak is unknown (see `trainer.host.flops`). `gradient_norm` is the
    norm before clipping.
    """

    kind: ClassVar[str] = "progress"
    step: int
    inner_step: int
    loss: float
    tokens_per_s: float
    tokens: int
    data_wait_s: float = 0.0
    mfu: float | None = None
    learning_rate: float = 0.0
    gradient_norm: float = 0.0

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        _check_count("inner_step", self.inner_step)
        _check_count("tokens", self.tokens)
        _check_finite("loss", self.loss)
        _check_finite("tokens_per_s", self.tokens_per_s)
        _check_finite("data_wait_s", self.data_wait_s)
        _check_finite("learning_rate", self.learning_rate)
        _check_finite("gradient_norm", self.gradient_norm)
        if self.mfu is not None:
            _check_finite("mfu", self.mfu)

    def duration_s(self, block_tokens: int) -> float:
        """Return the duration of the inner step in seconds, by the trainer's clock. The time
        between two reports can be longer, because the trainer also loads θ, saves its optimizer's
        state, or measures a loss.
        """
        return block_tokens / self.tokens_per_s if self.tokens_per_s > 0 else 0.0

    def computed_s(self, block_tokens: int) -> float:
        """Return that duration without the wait for the block, in seconds."""
        return max(0.0, self.duration_s(block_tokens) - self.data_wait_s)


@dataclass(frozen=True, slots=True)
class FragmentReady:
    """Every rank's weights are in the arena. They include `tokens` of the blocks read from
    `block_paths`, trained in this order since the last Load or Merge. `loss` is the mean over these
    blocks.
    """

    kind: ClassVar[str] = "fragment_ready"
    step: int
    tokens: int
    block_paths: tuple[str, ...]
    loss: float

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        _check_count("tokens", self.tokens)
        _check_paths(self.block_paths)
        _check_finite("loss", self.loss)

    @property
    def blocks(self) -> int:
        return len(self.block_paths)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer to Evaluate: the mean loss in nats over `tokens` predicted tokens."""

    kind: ClassVar[str] = "evaluated"
    request: int
    loss: float
    tokens: int

    def __post_init__(self) -> None:
        _check_count("request", self.request)
        _check_count("tokens", self.tokens)
        _check_finite("loss", self.loss)


@dataclass(frozen=True, slots=True)
class Failed:
    """The trainer could not carry out a frame. The trainer is alive and waits for the next frame.

    `code` is NAN (the loss is not finite), DATA (a block is missing or damaged) or ORDER (the frame
    is not allowed now, which is a bug of the node). `evaluation` is the `request` of the Evaluate
    that failed.
    """

    kind: ClassVar[str] = "failed"
    code: str
    text: str
    evaluation: int | None = None

    def __post_init__(self) -> None:
        _check_text("code", self.code, 32)
        _check_text("text", self.text)
        if self.evaluation is not None:
            _check_count("evaluation", self.evaluation)


ToTrainer = Load | Rates | Train | Merge | Rebase | Evaluate | Pause | Resume | Stop
ToNode = Hello | Resumed | Progress | FragmentReady | Evaluated | Failed
Frame = ToTrainer | ToNode

KINDS: Mapping[str, type[Frame]] = {
    frame.kind: frame
    for frame in (
        *(Load, Rates, Train, Merge, Rebase, Evaluate, Pause, Resume, Stop),
        *(Hello, Resumed, Progress, FragmentReady, Evaluated, Failed),
    )
}
