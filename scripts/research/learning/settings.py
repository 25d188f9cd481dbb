"""All numbers of one arm. Arms with equal settings give bit-identical results.

`batch_sequences` is the number of sequences that all peers together train on in one inner step.
`total_steps` counts the inner steps of each peer. So arms that differ only in the number of peers
see the same tokens in the same number of steps.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal

from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Optimizer, Precision, Schedule
from p2ptrain.kernels import Codec, CodecName, codec
from p2ptrain.sync import SyncSchedule, SyncSpec

Weights = Literal["tokens", "equal"]
Joining = Literal["fresh", "donor", "donors"]


@dataclass(frozen=True, slots=True)
class TextSpec:
    """The text: sources of Python's standard library, cut into sequences.

    `validation_sequences` come from about a dozen whole documents that are not trained on. These
    few documents differ from the rest. So `drawn_sequences` further sequences, drawn from all
    documents, are held out, and losses are measured on them. The loss on the whole documents is
    then recorded too. `draw` is the seed for drawing them.
    """

    limit_bytes: int = 12_000_000
    validation_sequences: int = 256
    seed: int = 1
    drawn_sequences: int = 0
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Churn:
    """In each outer step a peer stops before it has contributed, and a new peer starts in the next
    outer step.

    The new peer has θ. Its optimizer state is fresh, copied from one member, or the mean of all
    remaining members (`optimizer`). Its learning rate rises over `warmup_steps` inner steps.
    """

    optimizer: Joining = "fresh"
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Ordinary training before an arm begins, with a constant learning rate.

    All arms of a seed begin with the θ at its end, and with fresh optimizers.
    """

    steps: int
    batch_sequences: int
    lr: float

    @property
    def sequences(self) -> int:
        return self.steps * self.batch_sequences


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an arm.

    One peer that does not average (`averages`) is ordinary training. With the full batch it is the
    data-parallel baseline, and with a smaller batch a lone peer. The last `slow` peers do a quarter
    of the inner steps of the others.
    """

    model: ModelSpec
    peers: int
    inner_steps: int
    total_steps: int
    batch_sequences: int
    lr: float
    outer_lr: float = 0.7
    momentum: float = 0.9
    averages: bool = True
    sync: SyncSpec = field(default_factory=SyncSpec)
    codec: CodecName = "fp32"
    block: int = 256
    feedback: bool = False
    churn: Churn | None = None
    slow: int = 0
    weights: Weights = "tokens"
    warmup_steps: int = 100
    weight_decay: float = 0.1
    optimizer: Optimizer = "adamw"
    beta2: float = 0.95
    precision: Precision = "bf16"
    compiled: bool = False
    rates: Schedule = "cosine"
    start: Start | None = None
    evaluate_every: int = 160
    text: TextSpec = field(default_factory=TextSpec)
    seed: int = 1

    def __post_init__(self) -> None:
        _check(self.batch_sequences % self.peers == 0, "peers must divide batch_sequences")
        _check(self.total_steps % self.inner_steps == 0, "inner_steps must divide total_steps")
        _check(self.averages or self.peers == 1, "without averages, peers must be 1")
        _check(not self.slow or self.schedule.stride % SLOWNESS == 0, "slow peers need whole steps")
        _check(self.slow < self.peers, "slow must be less than peers")
        plain = self.sync.fragments == 1 and self.sync.overlap_steps == 0
        _check(plain or self.churn is None, "churn needs plain averaging")
        _check(self.schedule.stride > 0, "the stride of the sync schedule must be positive")

    @property
    def schedule(self) -> SyncSchedule:
        return SyncSchedule.of(self.sync, self.inner_steps)

    @property
    def peer_sequences(self) -> int:
        return self.batch_sequences // self.peers

    @property
    def kernels(self) -> Codec:
        return codec(self.codec, self.block)

    @property
    def inner(self) -> InnerSpec:
        return InnerSpec(
            steps=self.inner_steps,
            batch_sequences=self.peer_sequences,
            lr=self.lr,
            warmup_steps=min(self.warmup_steps, self.total_steps),
            total_steps=self.total_steps,
            schedule=self.rates,
            weight_decay=self.weight_decay,
            betas=(0.9, self.beta2),
            optimizer=self.optimizer,
        )

    @property
    def beginning(self) -> Settings | None:
        """The settings of the common start, or None. These settings are equal for arms of one seed
        that differ only in what follows the common start.
        """
        if self.start is None:
            return None
        return Settings(
            self.model,
            peers=1,
            inner_steps=1,
            total_steps=self.start.steps,
            batch_sequences=self.start.batch_sequences,
            lr=self.start.lr,
            averages=False,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            precision=self.precision,
            compiled=self.compiled,
            rates="constant",
            evaluate_every=self.start.steps,
            text=self.text,
            seed=self.seed,
        )

    @property
    def digest(self) -> str:
        """The digest of these settings, which identifies the records of an arm.

        It includes only values that differ from the defaults. So old records stay valid after a
        setting is added whose default does not change results.
        """
        return _digest(self)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


ARMS_MAX = 1024
"""Size of the digest cache, far more than the number of arms. A queue computes all digests after
each arm."""


@lru_cache(ARMS_MAX)
def _digest(settings: Settings) -> str:
    spelled = json.dumps(_departures(settings), sort_keys=True)
    return hashlib.blake2b(spelled.encode()).hexdigest()[:16]


SLOWNESS = 4
"""Number of inner steps that the other peers do while a slow peer does one."""


def _departures(value: Any) -> Any:
    """Return the fields of a dataclass that differ from their defaults, recursively."""
    if not is_dataclass(value):
        return value
    said = {each.name: (getattr(value, each.name), _default(each)) for each in fields(value)}
    return {name: _departures(mine) for name, (mine, default) in said.items() if mine != default}


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"invalid settings of an arm: {rule}")
