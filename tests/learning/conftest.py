"""A small setting: two layers, text whose next token is easy to predict, and experiments of a
second or less."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from p2ptrain.ipc.trainer_config import ModelSpec
from scripts.research.learning.corpus import Corpus, kept_at
from scripts.research.learning.settings import Settings, TextSpec

MODEL = ModelSpec(vocab=61, layers=2, width=16, heads=2, kv_heads=1, ffn=20, sequence=8)
TOY = Settings(
    MODEL,
    peers=2,
    inner_steps=4,
    total_steps=24,
    batch_sequences=4,
    lr=1e-2,
    precision="fp32",
    block=32,
    warmup_steps=2,
    evaluate_every=8,
    text=TextSpec(validation_sequences=16),
)


def toy(**changes: Any) -> Settings:
    return replace(TOY, **changes)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    torch.set_num_threads(int(os.environ.get("P2PTRAIN_TEST_THREADS", "1")))
    random = np.random.default_rng(0)
    rows = (random.integers(0, 40, (87, 1)) + 3 * np.arange(MODEL.sequence + 1)) % 59
    return Corpus(rows[16:].astype(np.uint16), rows[:16].astype(np.uint16))


@pytest.fixture
def texts(corpus: Corpus, tmp_path: Path) -> Path:
    """Return a folder that already contains the corpus."""
    path = kept_at(TOY, tmp_path)
    np.savez(path, train=corpus.train, validation=corpus.validation)
    return tmp_path
