"""Compiled and recomputed blocks have the same gradient, and are really compiled and recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from p2ptrain.data.blocks import read_block
from p2ptrain.ipc.trainer_config import TrainerConfig
from p2ptrain.trainer.rank.batch import accumulate
from p2ptrain.trainer.rank.ranks import Ranks
from tests.rounding import assert_rounded_alike
from tests.trainer.reference import flat_of, full, gradient

if TYPE_CHECKING:
    from tests.trainer.conftest import MakeDriver


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the code handed to a compiler and run it unchanged, since torch's compiler is slow."""
    seen: list[str] = []
    compile_block = nn.Module.compile

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        seen.append("\n".join(str(each.code) for each in graph.modules() if hasattr(each, "code")))
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_block(self, backend=backend))
    yield seen
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("recompute", [False, True])
def test_block_is_also_compiled_if_it_is_recomputed(
    recompute: bool,
    compiled: list[str],
    make_driver: MakeDriver,
    ranks: Ranks,
    config: TrainerConfig,
    block_paths: tuple[str, ...],
) -> None:
    spec = config.model
    rows = read_block(Path(block_paths[0]), vocab=spec.vocab, sequence=spec.sequence)
    plain, other = (
        make_driver(replace(config, compile=each, recompute=each and recompute))
        for each in (False, True)
    )
    found = []
    for driver in (plain, other):
        driver.arena.load()
        accumulate(rows, driver.model, ranks, config)
        named = driver.model.named_parameters()
        found.append(flat_of({name: full(each.grad) for name, each in named}, config))
    assert_rounded_alike(found[1], gradient(config, rows, torch.float64)[1], found[0])
    (graph,) = compiled  # All blocks share the compiled code.
    assert "scaled_dot_product_attention" in graph
    assert "silu" in graph
    assert ("checkpoint" in graph) == recompute
