"""The settings of a trainer: the model's sizes, the inner optimizer, and this machine.

Values are checked on construction, so that a trainer does not start with invalid settings. The
node passes the settings as JSON on the trainer's command line: a few hundred bytes, readable in
`ps`, without secrets.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from p2ptrain.errors import ConfigError

Schedule = Literal["wsd", "cosine", "constant"]
Optimizer = Literal["adamw", "muon"]
JoinOptimizer = Literal["fresh", "donor", "donors"]
DONORS = 3
"""Number of members whose optimizer states are averaged for a joining peer, which downloads that
many states. With this number, the losses in docs/results/learning.md were measured."""
Precision = Literal["fp32", "bf16"]
Device = Literal["cpu", "cuda"]


def _require(spec: object, name: str, holds: bool, fix: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {getattr(spec, name)!r}", do=fix)


def _require_one_of(spec: object, name: str, choices: tuple[str, ...]) -> None:
    _require(spec, name, getattr(spec, name) in choices, f"choose one of {', '.join(choices)}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of a Llama-style model. `width` is the total width of all heads; `ffn` is SwiGLU's
    inner width; `sequence` is the number of tokens in a sequence. If `tied`, the head uses the
    embedding's matrix.

    With `qk_norm`, queries and keys are normalised in each head before the rotary embedding, as in
    Qwen3, so that attention logits are bounded.
    """

    vocab: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    sequence: int
    rope_base: float = 10_000.0
    tied: bool = True
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "layers", "width", "heads", "kv_heads", "ffn", "sequence"):
            value = getattr(self, name)
            _require(self, name, type(value) is int and value > 0, f"set {name} to 1 or more")
        _require(
            self,
            "width",
            self.width % self.heads == 0 and self.head_width % 2 == 0,
            f"make width an even multiple of heads ({self.heads}), because the rotary embedding "
            "pairs the features of each head",
        )
        divisor = f"choose a divisor of heads ({self.heads})"
        _require(self, "kv_heads", self.heads % self.kv_heads == 0, divisor)
        base = "set it to a number above 1; usually 10000"
        _require(self, "rope_base", self.rope_base > 1, base)

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class InnerSpec:
    """Inner training of one outer step: `steps` (H) inner steps of `batch_sequences` each.

    The peak learning rate is `lr`. The rate rises over `warmup_steps` and falls towards the end of
    `total_steps`, both counted over the whole run; `schedule` is the shape of its curve (see
    `ipc.learning_rate`). `betas` are AdamW's; with "muon" only the embedding, the head and
    vectors use AdamW (see `trainer.rank.optimizer`).

    `join_optimizer` says how a peer that joins a running run gets its optimizer's state. With
    "fresh", the state is empty, and the learning rate rises again over `join_warmup_steps`. With
    "donor", the node asks one member for that member's state. With "donors", it asks several
    members and takes the mean of their states. A trainer that received a state skips the warm-up.
    """

    steps: int
    batch_sequences: int
    lr: float
    warmup_steps: int
    total_steps: int
    schedule: Schedule = "wsd"
    weight_decay: float = 0.1
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)
    z_loss: float = 0.0
    optimizer: Optimizer = "adamw"
    join_warmup_steps: int = 0
    join_optimizer: JoinOptimizer = "donors"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_sequences", "total_steps"):
            value = getattr(self, name)
            _require(self, name, type(value) is int and value > 0, f"set {name} to 1 or more")
        fits = type(self.warmup_steps) is int and 0 <= self.warmup_steps <= self.total_steps
        _require(self, "warmup_steps", fits, f"choose 0 to total_steps ({self.total_steps})")
        fits = type(self.join_warmup_steps) is int and self.join_warmup_steps >= 0
        _require(self, "join_warmup_steps", fits, "set it to 0 or more inner steps")
        for name in ("lr", "weight_decay", "clip", "z_loss"):
            value = getattr(self, name)
            _require(self, name, math.isfinite(value) and value >= 0, f"set {name} to 0 or more")
        _require_one_of(self, "schedule", get_args(Schedule))
        _require_one_of(self, "optimizer", get_args(Optimizer))
        _require_one_of(self, "join_optimizer", get_args(JoinOptimizer))
        object.__setattr__(self, "betas", tuple(self.betas))
        fits = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        _require(self, "betas", fits, "give two numbers from 0 to below 1")
        _require(
            self,
            "betas",
            self.join_optimizer == "fresh" or self.betas[0] ** 2 < self.betas[1],
            f'with join_optimizer = "{self.join_optimizer}", choose betas so that the '
            "square of the first is below the second",
        )

    @property
    def donors_max(self) -> int:
        """The number of members that a joining peer asks for their optimizer state."""
        return {"fresh": 0, "donor": 1, "donors": DONORS}[self.join_optimizer]

    @property
    def is_muon(self) -> bool:
        """Whether matrices are trained with Muon, at the same `lr`."""
        return self.optimizer == "muon"


MEMORY_LIKE = 1.05
"""A limit found at one start also applies if at most this many times as much memory is free. Free
memory differs a little from start to start, although the machine is the same."""


@dataclass(frozen=True, slots=True)
class Halving:
    """A limit that was found when a trainer ran out of memory: a rank on `device`, with
    `memory_bytes` free, can compute at most `micro_batch` sequences at once."""

    device: str
    memory_bytes: int
    micro_batch: int

    def __post_init__(self) -> None:
        named = isinstance(self.device, str)
        _require(self, "device", named, "set it to the name of a device")
        for name, least in (("memory_bytes", 0), ("micro_batch", 1)):
            value = getattr(self, name)
            fits = type(value) is int and value >= least
            _require(self, name, fits, f"set it to {least} or more")

    def holds(self, device: str, memory_bytes: int) -> bool:
        """Return whether the limit applies to `memory_bytes` of free memory on `device`."""
        return device == self.device and memory_bytes <= MEMORY_LIKE * self.memory_bytes


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """All settings that a trainer gets at its start. `model` and `inner` come from the run's
    manifest and are the same for every peer.

    `threads` is the number of CPU threads per rank. `micro_batch` is the number of sequences per
    forward pass of one rank; 0 means a rank's whole share of the batch, or fewer sequences if an
    earlier `halving` applies. With `recompute` the backward pass recomputes activations instead of
    keeping them. A document begins at each `document_token`. None means that document starts are
    not marked; then each sequence counts as one document. The inner optimizer's state is stored in
    the folder `state_folder`; an empty name means that the state is not stored.

    The model is averaged in `fragments` parts. When the average arrives, the weights become
    `mixing` times the local weights plus (1 − `mixing`) times the average. With `delayed`, the
    average arrives a whole outer step late. Then the local weights return to θ after each report,
    so that no work is reported twice. With `eager` as well, the weights do not return to θ itself,
    but to θ moved by this trainer's own share of the reported work.
    """

    model: ModelSpec
    inner: InnerSpec
    device: Device = "cpu"
    precision: Precision = "fp32"
    compile: bool = False
    recompute: bool = False
    threads: int = 1
    micro_batch: int = 0
    halving: Halving | None = None
    document_token: int | None = None
    state_folder: str = ""
    fragments: int = 1
    mixing: float = 0.0
    delayed: bool = False
    eager: bool = False
    gpu_bytes: int = 0
    """Maximum bytes that torch may allocate on a rank's GPU; 0 means no limit."""

    def __post_init__(self) -> None:
        lawful = self.delayed or not self.eager
        _require(self, "eager", lawful, "set it only with delayed averaging")
        whole = "set it to 1 or more; 1 means the whole model"
        _require(self, "fragments", self.fragments > 0, whole)
        _require(self, "mixing", 0 <= self.mixing < 1, "choose 0 to below 1")
        _require_one_of(self, "device", get_args(Device))
        _require_one_of(self, "precision", get_args(Precision))
        _require(self, "threads", self.threads > 0, "set threads to 1 or more")
        _require(self, "gpu_bytes", self.gpu_bytes >= 0, "set it to 0 or more; 0 means no limit")
        whole = "set it to 0 or more; 0 means the whole batch"
        _require(self, "micro_batch", self.micro_batch >= 0, whole)
        mark, vocab = self.document_token, self.model.vocab
        fits = mark is None or (type(mark) is int and 0 <= mark < vocab)
        below = f"set it to a token below vocab ({vocab}), or leave it out"
        _require(self, "document_token", fits, below)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TrainerConfig:
        """Read the settings. Raises ConfigError for anything that `to_json` does not write, in this
        version or in an earlier one."""
        try:
            tree = json.loads(text)
            model, inner = ModelSpec(**tree.pop("model")), InnerSpec(**tree.pop("inner"))
            tree.pop("seed", None)  # Nodes of earlier versions send it. It never had an effect.
            found = tree.pop("halving", None)
            halving = None if found is None else Halving(**found)
            return cls(model, inner, halving=halving, **tree)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise ConfigError(f"the trainer's settings cannot be read: {exc}") from exc
