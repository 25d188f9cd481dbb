"""The node's vectors lie in its memory and the trainer's weights on a GPU: only copies go between.

No GPU is needed to see that: torch knows of a tensor that is not there on which device it would be.
Where gradients are made it wants a device that it was built for: there it is "meta", which is as
little the CPU as a GPU is. What none of this can show: that kernels exist, what they compute, how
fast, and with how much memory; nor anything of FSDP, whose process groups are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from p2ptrain.errors import TrainerError
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Optimizer
from p2ptrain.trainer.arena import Share
from p2ptrain.trainer.deviation import Pull
from p2ptrain.trainer.model import Attention, Llama, token_losses
from p2ptrain.trainer.optimizer import make_optimizer
from p2ptrain.trainer.ranks import open_ranks

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


SPEC = ModelSpec(vocab=31, layers=1, width=12, heads=6, kv_heads=2, ffn=20, sequence=8)
WIDE = replace(SPEC, kv_heads=6, qk_norm=True, tied=False)


@pytest.mark.parametrize("mark", [None, 3], ids=["", "documents"])
@pytest.mark.parametrize("spec", [SPEC, WIDE], ids=["grouped", "wide"])
def test_losses_and_gradients_are_made_where_the_weights_are(
    spec: ModelSpec, mark: int | None
) -> None:
    with torch.device("meta"):
        model = Llama(spec, mark).bfloat16()
    tokens = torch.empty((3, 9), dtype=torch.int64, device="meta")
    with Crossings() as crossings:
        token_losses(model(tokens[:, :-1]), tokens[:, 1:], z_loss=0.1)[1].backward()
    assert crossings.seen == set()
    assert {p.grad.device.type for p in model.parameters() if p.grad is not None} == {"meta"}


class Attended(TorchFunctionMode):
    """Notes for how many heads there are keys."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[int] = []

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            self.heads.append(args[1].shape[1])
        return func(*args, **(kwargs or {}))


def place(module: nn.Module, mode: FakeTensorMode, dtype: torch.dtype, device: str) -> None:
    """Have its weights, which are not there, on this device."""
    shapes = {name: each.shape for name, each in module.state_dict().items()}
    with mode:
        weights = {
            name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()
        }
    module.load_state_dict(weights, assign=True)


@pytest.mark.parametrize(
    ("device", "dtype", "documents", "heads"),
    [
        ("cuda", torch.bfloat16, False, 2),
        ("cuda", torch.bfloat16, True, 6),
        ("cuda", torch.float32, False, 6),
        ("cuda", torch.float32, True, 6),
        ("cpu", torch.float32, True, 2),
    ],
)
@torch.no_grad()
def test_on_a_gpu_each_query_has_its_key_where_no_fused_kernel_is_for_groups(
    device: str, dtype: torch.dtype, documents: bool, heads: int
) -> None:
    mode, attended = FakeTensorMode(), Attended()
    with torch.device("meta"):
        attention = Attention(SPEC)
    place(attention, mode, dtype, device)
    with mode, attended:
        x = torch.empty((3, 8, 12), dtype=dtype, device=device)
        mask = torch.empty((3, 1, 8, 8), dtype=torch.bool, device=device)
        rotary = torch.empty((2, 8, 1), device=device)
        y = attention(x, rotary, mask if documents else None)
    assert (y.device.type, y.dtype, y.shape) == (device, dtype, (3, 8, 12))
    assert attended.heads == [heads]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_an_optimizer_keeps_is_where_the_weights_are(name: Optimizer) -> None:
    mode = FakeTensorMode()
    with torch.device("meta"):
        model = Llama(SPEC)
    place(model, mode, torch.float32, "cuda")
    with mode:
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer = make_optimizer(model, InnerSpec(1, 1, 0.1, 0, 1, optimizer=name))
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).device.type == "cuda"
        for _ in range(2):
            optimizer.step()
        kept = [optimizer.state_of(parameter) for parameter in model.parameters()]
    assert {each.device.type for state in kept for each in state.values()} == {"cuda"}


@pytest.mark.parametrize(("gpus", "code"), [(0, "GPU-DRIVER"), (1, "GPU-NONE")])
def test_a_rank_that_has_no_gpu_says_what_is_missing(
    gpus: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(TrainerError) as caught, open_ranks("cuda", None):
        pass
    assert caught.value.code == code
