"""What is known of an arm once it has ended: its losses, and all that they follow from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """How an arm ended: `loss` is that of θ on all held-out sequences, None if the arm diverged.

    `curve` is (inner steps, loss of θ on some of them, mean loss in training since the last);
    `text` names the corpus. `strangers_loss` is that of θ on the corpus' strangers, if it has any;
    `copied_loss` and `other_loss` are parts of `loss`: `learning.copying`. Where the processor
    could not multiply in bf16, `bf16_products` is False: `trainer.products`. `theta` and
    `start_theta` are digests of the θ that it ended with and began with; `joiners` is how much more
    loss in training who had just joined had than the others, in each inner step since. `torch` is
    the version that it was trained with, where that was noted.
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
