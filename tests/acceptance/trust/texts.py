"""Proofs of generated texts: honest ones, and texts by other weights or with a changed prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from p2ptrain.ids import RunId
from p2ptrain.proofs.text_proof import TextProof
from p2ptrain.trainer.rank.model import Llama
from p2ptrain.trainer.tools.generating import Sampling, generate
from p2ptrain.trainer.tools.proving import check_text, last_hidden_states, proofs_of
from tests.acceptance.measures.setting import Line, line
from tests.acceptance.trust.shares import Share
from tests.acceptance.trust.small_model import model_with, outer_steps, rounded, rows

TEXTS = 200
LIES = 40
PROMPT = 40
TOKENS = 40
RUN = RunId("0" * 64)


def proved_text(model: Llama, number: int, precision: str = "fp32") -> TextProof:
    """Generate a text with `model`, and prove it with another number format."""
    prompt = rows(1, PROMPT, seed=1000 + number)[0].tolist()
    tokens = list(islice(generate(model, prompt, Sampling(seed=number)), TOKENS))
    return TextProof(
        RUN, b"", (*prompt, *tokens), PROMPT, _proofs(model, prompt + tokens, precision)
    )


def _proofs(model: Llama, text: Sequence[int], precision: str) -> tuple[bytes, ...]:
    if precision == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return proofs_of(last_hidden_states(model, text))
    if precision == "bf16":
        model = model_with(model.state_dict()).to(torch.bfloat16)
    return proofs_of(last_hidden_states(model, text))


def lines() -> Iterator[Line]:
    torch.set_num_threads(1)
    steps = outer_steps()
    theta = model_with(steps[-1])
    kinds = ("fp32", "bf16", "autocast")
    honest = [proved_text(theta, number, kinds[number % 3]) for number in range(TEXTS)]
    refused = Share(_refused(theta, honest), TEXTS)
    yield line("texts: honest ones rejected", refused.at_most(), "0 of 200", refused.count == 0)
    liars = {
        "by weights in int4, a scale for each matrix": _by(model_with(rounded(steps[-1], 4, None))),
        "by weights in int4, a scale for 128 numbers": _by(model_with(rounded(steps[-1], 4))),
        "by the snapshot of the previous outer step": _by(model_with(steps[-2])),
        "by the snapshot of two outer steps before": _by(model_with(steps[-3])),
        "with another prompt": [_with_prompt(each, number) for number, each in enumerate(honest)],
    }
    for name, proofs in liars.items():
        found = Share(_refused(theta, proofs), len(proofs))
        enough = found.share >= 0.95
        yield line(f"texts: {name}, rejected", found.at_least(), "at least 95 %", enough)
    yield from _unnoticed(theta, honest)


def _unnoticed(theta: Llama, honest: list[TextProof]) -> Iterator[Line]:
    """Measure differences that a proof is not made to find."""
    others = {
        "by weights in int8": _by(model_with(rounded(outer_steps()[-1], 8))),
        "with one changed byte in the prompt": [_changed(each, 7) for each in honest],
        "with the last byte changed": [_changed(each, -1) for each in honest],
    }
    for name, proofs in others.items():
        found = Share(_refused(theta, proofs), len(proofs))
        yield line(f"texts: {name}, rejected", found.at_least(), "", True)


def _by(model: Llama) -> list[TextProof]:
    return [proved_text(model, number) for number in range(LIES)]


def _refused(theta: Llama, proofs: Sequence[TextProof]) -> int:
    return sum(not check_text(theta, each).agreement.fits for each in proofs)


def _with_prompt(proof: TextProof, number: int) -> TextProof:
    other = rows(1, PROMPT, seed=5000 + number)[0].tolist()
    return replace(proof, tokens=(*other, *proof.tokens[PROMPT:]))


def _changed(proof: TextProof, place: int) -> TextProof:
    """Change one byte, as somebody might change a letter or a digit."""
    tokens = list(proof.tokens)
    tokens[place] = (tokens[place] + 1) % 256
    return replace(proof, tokens=tuple(tokens))
