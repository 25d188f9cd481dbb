"""Fixtures: an export plan, and a matching θ in which every weight affects the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p2ptrain.export.folder import ExportPlan
from p2ptrain.export.provenance import Provenance
from p2ptrain.export.tokens import Tokenizer
from p2ptrain.ids import Digest, PeerId, RunId
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.state import Float32Vector
from p2ptrain.trainer.formats.genesis import genesis
from p2ptrain.trainer.formats.shapes import layout_of

SPEC = ModelSpec(vocab=61, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=16)
TOKENIZER = Tokenizer.of(b'{"added_tokens":[{"content":"<|endoftext|>","id":3}]}')
ORIGIN = Provenance(
    run=RunId("1" * 64),
    run_name="tiny",
    organiser=PeerId("12D3KooWEaGJfj8wwiy7s1AfSQS9VFxuXrUsBoEpA55DyRK8gsjx"),
    step=7,
    steps_planned=9,
    tokens=12_345,
    standing="certified",
    snapshot=Digest("2" * 64),
    snapshot_step=7,
    updates=0,
    entry_height=16,
    signed_by=(PeerId("a"), PeerId("b")),
    ledger_height=17,
    ledger_head=Digest("3" * 64),
    data_index=Digest("4" * 64),
    train_blocks=5,
    block_tokens=64,
)


SPECS = {
    "tied": SPEC,
    "untied": replace(SPEC, tied=False, rope_base=5e5),
    "QK norm": replace(SPEC, qk_norm=True),
}


@pytest.fixture(params=SPECS)
def plan(request: pytest.FixtureRequest) -> ExportPlan:
    return ExportPlan(SPECS[request.param], ORIGIN, TOKENIZER)


def trained(spec: ModelSpec) -> Float32Vector:
    """Return the first weights of a run plus random changes. Without the changes, some matrices
    would be zero and would not affect the result."""
    theta = genesis(spec, seed=1)
    random = np.random.default_rng(2)
    for entry in layout_of(spec).entries:
        noise = random.standard_normal(entry.numel, dtype=np.float32)
        theta[entry.offset : entry.end] += np.float32(0.2) * noise
    return theta
