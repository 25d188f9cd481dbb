"""The settings of a trainer: the model's sizes, the inner optimizer, and this machine.

`model` and `inner` come from the run's manifest and are the same for every peer; the rest is local.
Values are checked on construction, so that a trainer does not start with invalid settings. The
settings are passed as JSON on the trainer's command line: a few hundred bytes, readable in `ps`,
without secrets.
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
"""Number of members whose optimizer states are averaged for a joiner. Traffic grows by the same
factor. The measurements used this number (docs/results/learning.md)."""
Precision = Literal["fp32", "bf16"]
Device = Literal["cpu", "cuda"]


def _require(holds: bool, name: str, value: object, fix: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}", do=fix)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of a Llama-style model. `width` is the total width of all heads; `ffn` is SwiGLU's
    inner width.

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
            _require(type(value) is int and value > 0, name, value, f"set {name} to 1 or more")
        _require(
            self.width % self.heads == 0 and self.head_width % 2 == 0,
            "width",
            self.width,
            f"make width an even multiple of heads ({self.heads}), because rotary pairs "
            "split each head",
        )
        _require(
            self.heads % self.kv_heads == 0,
            "kv_heads",
            self.kv_heads,
            f"choose a divisor of heads ({self.heads})",
        )
        _require(
            self.rope_base > 1,
            "rope_base",
            self.rope_base,
            "set it to a number above 1; usually 10000",
        )

    @property
    def head_width(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class InnerSpec:
    """Inner training of one outer step: `steps` (H) inner steps of `batch_sequences` each.

    The learning rate rises over `warmup_steps` and falls towards the end of `total_steps`, both
    counted over the whole run; `schedule` is the shape (see `trainer.rank.schedule`). `betas` are
    AdamW's; with "muon" only the embedding, the head and vectors use them (see
    `trainer.rank.optimizer`). A trainer that joins a run later with a fresh optimizer warms up over
    `join_warmup_steps`. With `join_optimizer` "donor", the joiner's node first asks a member for
    that member's optimizer state. With "donors", the node asks several members and takes the mean
    of their states. A trainer that received a state skips the warm-up.
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
            _require(type(value) is int and value > 0, name, value, f"set {name} to 1 or more")
        _require(
            type(self.warmup_steps) is int and 0 <= self.warmup_steps <= self.total_steps,
            "warmup_steps",
            self.warmup_steps,
            f"choose 0 to total_steps ({self.total_steps})",
        )
        _require(
            type(self.join_warmup_steps) is int and self.join_warmup_steps >= 0,
            "join_warmup_steps",
            self.join_warmup_steps,
            "set it to 0 or more inner steps",
        )
        for name in ("lr", "weight_decay", "clip", "z_loss"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, f"set {name} to 0 or more")
        _require(
            self.schedule in get_args(Schedule),
            "schedule",
            self.schedule,
            f"choose one of {', '.join(get_args(Schedule))}",
        )
        _require(
            self.optimizer in get_args(Optimizer),
            "optimizer",
            self.optimizer,
            "choose adamw or muon",
        )
        _require(
            self.join_optimizer in get_args(JoinOptimizer),
            "join_optimizer",
            self.join_optimizer,
            "choose fresh, donor or donors",
        )
        object.__setattr__(self, "betas", tuple(self.betas))
        _require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            "betas",
            self.betas,
            "give two numbers from 0 to below 1",
        )
        _require(
            self.join_optimizer == "fresh" or self.betas[0] ** 2 < self.betas[1],
            "betas",
            self.betas,
            (
                f'with join_optimizer = "{self.join_optimizer}", choose betas so that the '
                "square of the first is below the second"
            ),
        )

    @property
    def donors_max(self) -> int:
        """The number of members that a joiner asks for their optimizer state."""
        return {"fresh": 0, "donor": 1, "donors": DONORS}[self.join_optimizer]

    @property
    def is_muon(self) -> bool:
        """Whether matrices are trained with Muon, at the same `lr`."""
        return self.optimizer == "muon"


MEMORY_LIKE = 1.05
"""Maximum ratio between the free memory at two starts of the same trainer."""


@dataclass(frozen=True, slots=True)
class Halving:
    """A limit found by running out of memory: a rank on `device`, with `memory_bytes` free, can
    compute at most `micro_batch` sequences at once.
    """

    device: str
    memory_bytes: int
    micro_batch: int

    def __post_init__(self) -> None:
        _require(
            isinstance(self.device, str), "device", self.device, "set it to the name of a device"
        )
        for name, least in (("memory_bytes", 0), ("micro_batch", 1)):
            value = getattr(self, name)
            _require(
                type(value) is int and value >= least, name, value, f"set it to {least} or more"
            )

    def holds(self, device: str, memory_bytes: int) -> bool:
        """Return whether the limit applies to `memory_bytes` of free memory on `device`."""
        return device == self.device and memory_bytes <= MEMORY_LIKE * self.memory_bytes


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """All settings that a trainer gets at its start.

    `threads` is the number of CPU threads per rank. `micro_batch` is the number of sequences per
    forward pass of one rank; 0 means the whole batch, or less if an earlier `halving` applies. With
    `recompute` the backward pass recomputes activations instead of keeping them. A document begins
    at each `document_token`. None means that document starts are not marked; then each sequence
    counts as one document. The inner optimizer's state is stored in `state_folder`, unless that is
    empty.

    The model is averaged in `fragments`, and local weights keep a share of `mixing` when the mean
    arrives. With `delayed`, the mean arrives a whole outer step late. Then the local weights return
    to θ after each report, because work must not be reported twice. With `eager` as well, they do
    not return to θ itself, but to θ moved by this trainer's own share of the reported work.
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
    seed: int = 0
    document_token: int | None = None
    state_folder: str = ""
    fragments: int = 1
    mixing: float = 0.0
    delayed: bool = False
    eager: bool = False

    def __post_init__(self) -> None:
        _require(
            self.delayed or not self.eager,
            "eager",
            self.eager,
            "set it only with delayed averaging",
        )
        _require(
            self.fragments > 0,
            "fragments",
            self.fragments,
            "set it to 1 or more; 1 means the whole model",
        )
        _require(0 <= self.mixing < 1, "mixing", self.mixing, "choose 0 to below 1")
        _require(self.device in get_args(Device), "device", self.device, "choose cpu or cuda")
        _require(
            self.precision in get_args(Precision),
            "precision",
            self.precision,
            "choose fp32 or bf16",
        )
        _require(self.threads > 0, "threads", self.threads, "set threads to 1 or more")
        _require(
            self.micro_batch >= 0,
            "micro_batch",
            self.micro_batch,
            "set it to 0 or more; 0 means the whole batch",
        )
        mark = self.document_token
        _require(
            mark is None or (type(mark) is int and 0 <= mark < self.model.vocab),
            "document_token",
            mark,
            f"set it to a token below vocab ({self.model.vocab}), or leave it out",
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TrainerConfig:
        """Read the settings. Raises ConfigError for anything that `to_json` does not write."""
        try:
            tree = json.loads(text)
            model, inner = ModelSpec(**tree.pop("model")), InnerSpec(**tree.pop("inner"))
            found = tree.pop("halving", None)
            halving = None if found is None else Halving(**found)
            return cls(model, inner, halving=halving, **tree)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise ConfigError(f"the trainer's settings cannot be read: {exc}") from exc
