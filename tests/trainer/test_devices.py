"""The node's vectors lie in its memory and the trainer's weights on a GPU: only copies go between.

No GPU is needed to see that: torch knows of a tensor that is not there on which device it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from p2ptrain.trainer.arena import Share
from p2ptrain.trainer.deviation import Pull

SHAPE = (4, 3)


class Crossings(TorchDispatchMode):
    """Notes what is computed of tensors on more than one device, and is no copy."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = tree_leaves((args, kwargs))
        if len({each.device for each in leaves if isinstance(each, Tensor)}) > 1:
            self.seen |= {str(func)} - {"aten._foreach_copy_.default"}
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[False, True], ids=["", "eager"])
def share(request: pytest.FixtureRequest) -> Iterator[Share]:
    with FakeTensorMode():
        own = torch.empty(SHAPE, device="cuda")
        share = Share([own], [torch.empty(SHAPE)], [torch.empty(SHAPE)], [torch.empty_like(own)])
        if request.param:
            share.beside.follow(own)
        yield share


@pytest.mark.parametrize(
    "move",
    [
        lambda share: share.merge(0.0),
        lambda share: share.merge(0.5),
        Share.rebase,
        Share.store,
        lambda share: share.deviate(Pull(0.5, 0.7, 0.9), 1),
        Share.set_aside,
        Share.take_back,
    ],
    ids=["load", "merge", "rebase", "store", "deviate", "set aside", "take back"],
)
def test_between_a_gpu_and_the_arena_only_copies_go(
    share: Share, move: Callable[[Share], None]
) -> None:
    with Crossings() as crossings:
        move(share)
    assert crossings.seen == set()
