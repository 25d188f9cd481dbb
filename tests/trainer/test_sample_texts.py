"""A trainer continues prompts with θ, in between, and training does not notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from p2ptrain.ipc.frames import Generate, Generated, Load, Train
from p2ptrain.ipc.trainer_config import TrainerConfig
from tests.trainer.conftest import MODEL, Driver, MakeDriver, Vectors

PROMPTS = ((7, 300, 0, 12), (99,), (250, 31, 5), (1, 2), (3,), (4, 4))
"""More prompts than a forward pass has rows."""

ORDER = Generate(5, PROMPTS, 6, 60.0)


def trained(vectors: Vectors) -> None:
    """Make θ a model whose next token depends on the tokens before it."""
    noise = np.random.default_rng(3).standard_normal(len(vectors.theta)).astype(np.float32)
    vectors.theta[vectors.covered] += (0.2 * noise)[vectors.covered]


@torch.no_grad()
def greedy(driver: Driver, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    text = list(prompt)
    for _ in range(count):
        text.append(int(driver.model(torch.tensor([text]))[0, -1].argmax()))
    return tuple(text[len(prompt) :])


@pytest.mark.parametrize("micro_batch", [0, 2])
def test_each_text_takes_the_likeliest_tokens_of_theta(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, micro_batch: int
) -> None:
    trained(vectors)
    driver = make_driver(replace(config, micro_batch=micro_batch, device="cpu"))
    (answer,) = driver.send(Load(0), ORDER)
    assert answer == Generated(5, tuple(greedy(driver, prompt, 6) for prompt in PROMPTS))
    assert isinstance(answer, Generated)
    assert len(set(answer.texts)) > 1


def test_sampling_does_not_affect_training(
    make_driver: MakeDriver, config: TrainerConfig, vectors: Vectors, block_paths: tuple[str, ...]
) -> None:
    trained(vectors)
    make_driver(config).send(Load(0), Train(0, block_paths[:4], 0))
    undisturbed = vectors.local.copy()
    answers = make_driver(config).send(
        Load(0), ORDER, Train(0, block_paths[:4], 0), after={2: ORDER}
    )
    first, second = (answer for answer in answers if isinstance(answer, Generated))
    assert first == second
    np.testing.assert_array_equal(vectors.local, undisturbed)


def test_text_ends_at_the_deadline_or_with_the_context(driver: Driver) -> None:
    late = Generate(1, ((1, 2),), 6, 0.0)
    assert driver.send(Load(0), late) == [Generated(1, ((),))]
    long = Generate(2, ((1,) * 40, (2,) * 12), 6, 60.0)
    (answer,) = driver.send(Load(0), long)
    assert isinstance(answer, Generated)
    room = MODEL.sequence - 6
    assert [len(text) for text in answer.texts] == [6, MODEL.sequence - room]


def test_model_that_is_not_finite_reports_trouble(driver: Driver, vectors: Vectors) -> None:
    vectors.theta[:] = np.nan
    assert driver.send(Load(0), ORDER) == [
        Generated(5, (), "the model's output is not finite"),
    ]
