"""The record of an arm that has ended: its losses, and the settings that produced them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """The result of an arm.

    `loss` is the loss of θ on all held-out sequences in nats, or None if the arm diverged. `curve`
    has points (inner steps, loss of θ on some of these sequences, mean training loss since the last
    point). `text` is the digest of the corpus. `strangers_loss` is the loss of θ on the corpus's
    strangers, if it has any. `copied_loss` and `other_loss` are the losses on two kinds of tokens
    (see `learning.copying`). `bf16_products` is False if the processor could not multiply in bf16.
    `theta` and `start_theta` are digests of the last and the first θ. `joiners` is the extra
    training loss of new members compared with the others, by inner step since they joined.
    `torch` is the version of torch, if it was recorded.
    """

    arm: str
    seed: int
    digest: str
    text: str
    loss: float | None
    tokens: int
    outer_steps: int
    cpu_s: float
    curve: tuple[tuple[int, float, float], ...]
    settings: dict[str, Any]
    strangers_loss: float | None = None
    bf16_products: bool = True
    copied_loss: float | None = None
    other_loss: float | None = None
    theta: str | None = None
    start_theta: str | None = None
    joiners: tuple[float, ...] = ()
    torch: str | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Record:
        curve = tuple(tuple(point) for point in plain["curve"])
        return cls(**{**plain, "curve": curve, "joiners": tuple(plain.get("joiners", ()))})
