"""The frames between a node and its trainer, as values.

    node → trainer                            trainer → node
    ─────────────────────────────────────     ─────────────────────────────────────────────
    Load       parameters become θ            Hello          started, with this layout
                                              Resumed        which inner state was restored
    Rates      an amended learning rate
    Train      one inner step per block       Progress       an inner step is done
    Merge      θ includes the reported work   FragmentReady  local weights are in the arena
    Rebase     θ changed without that work
    Evaluate   loss of θ on these blocks      Evaluated      the loss
    Generate   θ continues these prompts      Generated      the continuations
    Stop                                      Failed         an order failed, and why

The arena is the memory that the node and its trainer share: θ, which the node writes, and the local
weights, which the trainer writes. A block is a file with the tokens of one inner step.

Each dataclass checks itself on construction, so neither side can send or accept an invalid value.
The trainer is our own code, but GPU drivers in its process may corrupt memory, so the node checks a
trainer's frames as carefully as a peer's. `wire` converts frames to bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from p2ptrain.ids import Digest, is_digest
from p2ptrain.ipc.sample_frames import Generate as Generate
from p2ptrain.ipc.sample_frames import Generated as Generated

BLOCKS_MAX = 16_384
"""Maximum number of blocks in a frame: the blocks of four leases of 4,096 blocks each. A lease is
the list of blocks that a member may train on in one outer step; after skipped outer steps, the
member holds several. `run.manifest` refuses runs with longer leases."""
PATH_BYTES_MAX = 4096
"""Maximum bytes of a path: the longest path that Linux opens."""
TEXT_CHARACTERS_MAX = 4096
# The largest valid count: more than any run can reach (nearly ten million years at 30 inner steps a
# second), and exact as a double.
COUNT_MAX = 2**53


def _check_count(name: str, value: object, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= COUNT_MAX:
        raise ValueError(f"{name} is {value!r}, not a count of at least {least}")


def _check_counts(frame: object, *names: str, least: int = 0) -> None:
    for name in names:
        _check_count(name, getattr(frame, name), least)


def _check_finite(frame: object, *names: str) -> None:
    for name in names:
        value = getattr(frame, name)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}, not a finite number")


def check_text(name: str, value: object, characters_max: int = TEXT_CHARACTERS_MAX) -> None:
    if not isinstance(value, str) or len(value) > characters_max:
        raise ValueError(f"{name} is not a string of at most {characters_max} characters")


def _check_paths(paths: object) -> None:
    if not isinstance(paths, tuple) or len(paths) > BLOCKS_MAX:
        raise ValueError(f"block_paths is not a tuple of at most {BLOCKS_MAX} paths")
    for path in paths:
        if not isinstance(path, str) or len(path.encode()) > PATH_BYTES_MAX:
            raise ValueError(f"a block path is not a string of at most {PATH_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class _OfStep:
    step: int

    def __post_init__(self) -> None:
        _check_count("step", self.step)


class Load(_OfStep):
    """Load θ of outer step `step` from the arena. Any earlier local work is already part of θ, or
    is discarded."""

    __slots__ = ()
    kind: ClassVar[str] = "load"


@dataclass(frozen=True, slots=True)
class Train:
    """Train for outer step `step`: one inner step per block, in this order.

    `first_inner_step` counts from the start of the run and determines the learning rate. The work
    done since the last Load is kept: if the outer step was skipped, another Train adds to the
    change that the peer contributes. With `ahead` the trainer does not send FragmentReady after
    these blocks, because the weights in the arena are still being averaged.

    With `sync.eager`, the trainer does not wait for the average: it applies the part `share` of the
    work that it has just reported, as an outer step with `outer_lr` and `outer_momentum` would.
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
        _check_counts(self, "step", "first_inner_step")
        _check_paths(self.block_paths)
        if type(self.ahead) is not bool:
            raise ValueError("ahead is not a bool")
        _check_finite(self, "share", "outer_lr", "outer_momentum")
        if not (0 <= self.share <= 1 and self.outer_lr >= 0 and 0 <= self.outer_momentum < 1):
            raise ValueError("share, outer_lr or outer_momentum is out of range")


@dataclass(frozen=True, slots=True)
class Rates:
    """Use `lr` as the peak inner learning rate from the next inner step on, after an amendment (a
    signed change of the run's settings).

    If the number of inner steps per outer step was amended, the schedule of the learning rate
    continues at a different pace. At inner step `since`, the learning rate is the one that the
    published schedule has at inner step `reached`. From there, every `inner_steps` inner steps
    advance the published schedule by `schedule_steps` steps.
    """

    kind: ClassVar[str] = "rates"
    lr: float
    since: int = 0
    reached: int = 0
    inner_steps: int = 1
    schedule_steps: int = 1

    def __post_init__(self) -> None:
        _check_finite(self, "lr")
        if self.lr <= 0:
            raise ValueError(f"lr is {self.lr!r}, which is not a usable learning rate")
        _check_counts(self, "since", "reached")
        _check_counts(self, "inner_steps", "schedule_steps", least=1)

    def schedule_step(self, inner_step: int) -> int:
        """Return the inner step of the published schedule that applies at `inner_step`."""
        gone = (inner_step - self.since) * self.schedule_steps // self.inner_steps
        return max(0, self.reached + gone)


class Merge(_OfStep):
    """The arena now has θ of outer step `step`, which includes the work that the trainer reported
    as ready.

    In the reported fragment, the weights become θ, or are mixed with θ if the run uses mixing. In
    other fragments, the weights shift by the change of θ. Work done after the report is kept.
    """

    __slots__ = ()
    kind: ClassVar[str] = "merge"


class Rebase(_OfStep):
    """The arena now has θ of outer step `step`, which does not include this trainer's work. Shift
    the weights by the change of θ, so that they keep the work.

    A trainer that had sent FragmentReady writes its weights again and sends FragmentReady for
    `step`.
    """

    __slots__ = ()
    kind: ClassVar[str] = "rebase"


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Measure the loss of the arena's θ on these blocks. Local weights are restored afterwards."""

    kind: ClassVar[str] = "evaluate"
    request: int
    block_paths: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_count("request", self.request)
        _check_paths(self.block_paths)


@dataclass(frozen=True, slots=True)
class Stop:
    """End with exit status 0 after the current inner step."""

    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Hello:
    """The trainer's first frame: all `ranks` have started, and the arena can hold the model. Each
    rank computes `micro_batch` sequences at once, and had at least `memory_bytes` of free memory on
    its device. `device` is the name of rank 0's device."""

    kind: ClassVar[str] = "hello"
    rank: int
    ranks: int
    layout_digest: Digest
    parameters: int
    device: str
    micro_batch: int
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        _check_counts(self, "ranks", "parameters", "micro_batch", least=1)
        _check_counts(self, "rank", "memory_bytes")
        check_text("device", self.device)
        if not self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not below {self.ranks}, the number of ranks")
        if not is_digest(self.layout_digest):
            raise ValueError("layout_digest is not a digest")


@dataclass(frozen=True, slots=True)
class Resumed:
    """Sent at the first Load by a trainer that stores its optimizer's state on disk. `state_step`
    is the outer step of the state that was restored, or None if there was none. The trainer sends
    another Resumed if the state could not be stored; `trouble` then gives the reason."""

    kind: ClassVar[str] = "resumed"
    step: int
    state_step: int | None
    trouble: str = ""

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        if self.state_step is not None:
            _check_count("state_step", self.state_step)
        check_text("trouble", self.trouble)


@dataclass(frozen=True, slots=True)
class Progress:
    """One inner step is done. `loss` is the mean loss of this step. `tokens` counts the trained
    tokens whose work is not part of θ yet.

    `data_wait_s` is the time that the step waited for its block; `tokens_per_s` includes that time.
    `mfu` is the share of the device's peak speed that the step reached, or None if the peak is
    unknown (see `trainer.host.flops`). `gradient_norm` is the norm before clipping.
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
        _check_counts(self, "step", "inner_step", "tokens")
        _check_finite(self, "loss", "tokens_per_s", "data_wait_s")
        _check_finite(self, "learning_rate", "gradient_norm")
        if self.mfu is not None:
            _check_finite(self, "mfu")

    def duration_s(self, block_tokens: int) -> float:
        """Return the duration of the inner step in seconds, by the trainer's clock. The time
        between two reports can be longer, because the trainer also loads θ, saves its optimizer's
        state, or measures a loss."""
        return block_tokens / self.tokens_per_s if self.tokens_per_s > 0 else 0.0

    def computed_s(self, block_tokens: int) -> float:
        """Return the duration of the inner step without the wait for its block, in seconds."""
        return max(0.0, self.duration_s(block_tokens) - self.data_wait_s)


@dataclass(frozen=True, slots=True)
class FragmentReady:
    """Every rank's weights are in the arena. `block_paths` are the trained blocks whose work is not
    part of θ yet, in order of training. `tokens` is the number of tokens in these blocks, and
    `loss` is the mean loss per token."""

    kind: ClassVar[str] = "fragment_ready"
    step: int
    tokens: int
    block_paths: tuple[str, ...]
    loss: float

    def __post_init__(self) -> None:
        _check_counts(self, "step", "tokens")
        _check_paths(self.block_paths)
        _check_finite(self, "loss")

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
        _check_counts(self, "request", "tokens")
        _check_finite(self, "loss")


@dataclass(frozen=True, slots=True)
class Failed:
    """The trainer could not do what a frame asked for. The trainer is alive and waits for the next
    frame.

    `code` is NAN (the loss is not finite), DATA (a block is missing or damaged) or ORDER (the frame
    is not allowed now, which means a bug in the node). If an Evaluate failed, `evaluation` is its
    `request`.
    """

    kind: ClassVar[str] = "failed"
    code: str
    text: str
    evaluation: int | None = None

    def __post_init__(self) -> None:
        check_text("code", self.code, 32)
        check_text("text", self.text)
        if self.evaluation is not None:
            _check_count("evaluation", self.evaluation)


ToTrainer = Load | Rates | Train | Merge | Rebase | Evaluate | Generate | Stop
ToNode = Hello | Resumed | Progress | FragmentReady | Evaluated | Generated | Failed
Frame = ToTrainer | ToNode

KINDS: Mapping[str, type[Frame]] = {frame.kind: frame for frame in get_args(Frame)}
