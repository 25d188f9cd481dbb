"""Proofs of texts with a real model: rounding is tolerated, and other weights or texts are not."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch

from p2ptrain.errors import RemoteProtocolError, TrainerDiverged
from p2ptrain.ids import RunId
from p2ptrain.ipc.trainer_config import ModelSpec
from p2ptrain.proofs.text_proof import TextProof
from p2ptrain.trainer.rank.model import Llama, token_losses
from p2ptrain.trainer.tools.generating import Sampling, generate
from p2ptrain.trainer.tools.proving import check_text, last_hidden_states, proofs_of
from tests.rounding import MARGIN, UNIT
from tests.trainer.test_model import started

SPEC = ModelSpec(vocab=301, layers=2, width=36, heads=6, kv_heads=2, ffn=75, sequence=128)
PROMPT = [(7 * place) % 301 for place in range(40)]


@pytest.fixture(scope="module")
def model() -> Llama:
    return started(SPEC).float()


@pytest.fixture(scope="module")
def proof(model: Llama) -> TextProof:
    text = [*PROMPT, *islice(generate(model, PROMPT, Sampling(seed=1)), 40)]
    proofs = proofs_of(last_hidden_states(model, text))
    return TextProof(RunId("0" * 64), b"", tuple(text), len(PROMPT), proofs)


def test_states_are_those_of_the_whole_model(model: Llama) -> None:
    with torch.no_grad():
        logits = model.head(last_hidden_states(model, PROMPT))
        torch.testing.assert_close(logits, model(torch.tensor([PROMPT]))[0])


def test_text_fits_its_proof_and_has_the_models_loss(model: Llama, proof: TextProof) -> None:
    found = check_text(model, proof)
    assert found.agreement.fits
    tokens = torch.tensor([proof.tokens])
    with torch.no_grad():
        loss, _ = token_losses(model(tokens)[:, 39:-1], tokens[:, 40:], 0.0)
    assert found.loss_nats == pytest.approx(loss.item() / 40, rel=MARGIN * 301 * UNIT)


def test_text_that_was_proved_in_bf16_fits_too(model: Llama, proof: TextProof) -> None:
    half = Llama(SPEC)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.bfloat16)
    rounded = replace(proof, proofs=proofs_of(last_hidden_states(half, proof.tokens)))
    assert check_text(model, rounded).agreement.fits


@pytest.mark.parametrize(("place", "agreed"), [(3, 0), (35, 32), (44, 32)])
def test_text_is_found_to_differ_from_the_chunk_of_the_first_changed_token(
    model: Llama, proof: TextProof, place: int, agreed: int
) -> None:
    tokens = (*proof.tokens[:place], *((each + 1) % SPEC.vocab for each in proof.tokens[place:]))
    assert check_text(model, replace(proof, tokens=tokens)).agreement.agreed == agreed


def test_one_changed_token_at_the_end_can_pass(model: Llama, proof: TextProof) -> None:
    """A token contributes four of a chunk's 128 values on average, and the limit is 12. Anybody
    with the weights can prove any text anyway, so this costs no security."""
    tokens = (*proof.tokens[:-2], 7, proof.tokens[-1])
    worst = check_text(model, replace(proof, tokens=tokens)).agreement.worst
    assert 0 < worst.mismatches < 20


def test_other_weights_do_not_fit(model: Llama, proof: TextProof) -> None:
    other = Llama(SPEC)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for each in other.parameters():
            each.add_(0.05 * each.std() * torch.randn(each.shape, generator=torch.manual_seed(1)))
    assert check_text(other, proof).agreement.agreed == 0


def test_text_of_another_model_is_refused(model: Llama, proof: TextProof) -> None:
    for other in (replace(SPEC, vocab=50), replace(SPEC, sequence=79)):
        with pytest.raises(RemoteProtocolError):
            check_text(Llama(other), proof)


def test_states_that_are_not_finite_are_an_error(model: Llama) -> None:
    states = last_hidden_states(model, PROMPT)
    with pytest.raises(TrainerDiverged, match="not finite"):
        proofs_of(states * math.inf)
    with pytest.raises(ValueError, match="31"):
        proofs_of(states[:31])
