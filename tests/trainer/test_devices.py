"""The node's vectors are in its memory and the trainer's weights on a GPU. Only copies cross
between them.

These tests need no GPU: torch knows the device of a fake tensor, which has no memory. Gradients do
not work on a GPU for which torch was not built, so "meta" stands for the GPU in that test. These
tests do not show whether kernels exist, what they compute, or how much time and memory they take.
They do not cover FSDP, which needs real process groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from p2ptrain.errors import MachineUnfit, P2PTrainError
from p2ptrain.ipc.trainer_config import InnerSpec, ModelSpec, Optimizer
from p2ptrain.trainer.rank import ranks
from p2ptrain.trainer.rank.arena import FragmentShard
from p2ptrain.trainer.rank.deviation import Pull
from p2ptrain.trainer.rank.model import Attention, Llama, token_losses
from p2ptrain.trainer.rank.optimizer import make_optimizer
from p2ptrain.trainer.rank.own_gpu import (
    Capability,
    Device,
    require_bf16,
    room_for_the_model,
    runs_on,
)
from p2ptrain.trainer.rank.ranks import open_ranks

SHAPE = (4, 3)


class Crossings(TorchDispatchMode):
    """Records computations on tensors of more than one device, except copies."""

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
def share(request: pytest.FixtureRequest) -> Iterator[FragmentShard]:
    with FakeTensorMode():
        own = torch.empty(SHAPE, device="cuda")
        share = FragmentShard(
            [own], [torch.empty(SHAPE)], [torch.empty(SHAPE)], [torch.empty_like(own)]
        )
        if request.param:
            share.beside.follow(own)
        yield share


@pytest.mark.parametrize(
    "move",
    [
        lambda share: share.merge(0.0),
        lambda share: share.merge(0.5),
        FragmentShard.rebase,
        FragmentShard.store,
        lambda share: share.deviate(Pull(0.5, 0.7, 0.9), 1),
        FragmentShard.set_aside,
        FragmentShard.take_back,
    ],
    ids=["load", "merge", "rebase", "store", "deviate", "set aside", "take back"],
)
def test_only_copies_cross_between_a_gpu_and_the_arena(
    share: FragmentShard, move: Callable[[FragmentShard], None]
) -> None:
    with Crossings() as crossings:
        move(share)
    assert crossings.seen == set()


SPEC = ModelSpec(vocab=31, layers=1, width=12, heads=6, kv_heads=2, ffn=20, sequence=8)
WIDE = replace(SPEC, kv_heads=6, qk_norm=True, tied=False)


@pytest.mark.parametrize("mark", [None, 3], ids=["", "documents"])
@pytest.mark.parametrize("spec", [SPEC, WIDE], ids=["grouped", "wide"])
def test_losses_and_gradients_are_computed_on_the_weights_device(
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
    """Records the number of heads for which attention gets keys."""

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
    """Give the module fake weights on this device."""
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
def test_gpu_repeats_keys_where_no_fused_kernel_supports_groups(
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
def test_optimizer_state_is_on_the_device_of_the_weights(name: Optimizer) -> None:
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


@dataclass
class Gpus:
    """`count` equal GPUs. This process uses 16 of the 24 GB of each."""

    count: int
    capability: Capability = (8, 0)
    built_for: tuple[str, ...] = ()
    free_gb: int = 0

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def get_device_capability(self, device: Device, /) -> Capability:
        return self.capability

    def get_arch_list(self) -> list[str]:
        return list(self.built_for)

    def get_device_name(self, device: Device, /) -> str:
        return "A GPU"

    def mem_get_info(self, device: Device, /) -> tuple[int, int]:
        return self.free_gb * 10**9, 24 * 10**9

    def memory_reserved(self, device: Device, /) -> int:
        return 16 * 10**9


@pytest.mark.parametrize(("gpus", "code"), [(0, "GPU-DRIVER"), (1, "GPU-NONE"), (2, "GPU-OLD")])
def test_rank_without_a_usable_gpu_says_what_is_missing(
    gpus: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    old = Gpus(gpus, (6, 1), ("sm_75", "sm_80", "sm_90"))
    with pytest.raises(MachineUnfit) as caught, open_ranks("cuda", None, cuda=old):
        pass
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((6, 1), ["sm_75", "sm_80"], False),
        ((8, 0), ["sm_75", "sm_80"], True),
        ((8, 9), ["sm_75", "sm_80"], True),
        ((8, 0), ["sm_75", "sm_86"], False),
        ((9, 0), ["sm_80", "sm_90a"], True),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_80", "compute_90"], True),
        ((7, 0), ["compute_80"], False),
        ((7, 0), [], True),
        ((7, 0), ["gfx942"], True),
    ],
)
def test_gpu_runs_code_built_or_compilable_for_its_generation(
    capability: Capability, built_for: list[str], runs: bool
) -> None:
    assert runs_on(capability, built_for) == runs


def test_bf16_is_refused_on_a_gpu_that_would_emulate_it() -> None:
    gpu, old = torch.device("cuda", 0), Gpus(1, (7, 5))
    require_bf16(gpu, Gpus(1, (8, 0)))
    require_bf16(torch.device("cpu"), old)
    with pytest.raises(MachineUnfit, match="A GPU has no bf16 hardware") as caught:
        require_bf16(gpu, old)
    assert (caught.value.code, caught.value.do) == ("GPU-OLD", "use --precision fp32")


@pytest.mark.parametrize(
    ("free_gb", "code"), [(1, "GPU-BUSY"), (7, "MEM-GPU")], ids=["others", "the model"]
)
def test_error_for_a_too_small_gpu_says_what_fills_it(free_gb: int, code: str) -> None:
    """Memory that is neither free nor ours belongs to others."""
    gpu, gpus = torch.device("cuda", 0), Gpus(1, free_gb=free_gb)
    with pytest.raises(P2PTrainError) as caught, room_for_the_model(gpu, gpus):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert caught.value.code == code
    assert isinstance(caught.value, MachineUnfit) == (code == "MEM-GPU")
    with pytest.raises(RuntimeError, match="shapes"), room_for_the_model(gpu, gpus):
        raise RuntimeError("shapes do not match")


def test_failing_rank_does_not_wait_for_the_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's shutdown would wait for all ranks, while they wait for this one in a collective."""
    left: list[bool] = []
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: None)
    monkeypatch.setattr(ranks, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: left.append(True))
    with pytest.raises(OSError, match="gone"), open_ranks("cpu", None):
        raise OSError("gone")
    assert left == []
    with open_ranks("cpu", None):
        pass
    assert left == [True]
