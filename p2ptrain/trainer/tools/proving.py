"""Compute and compare the proof of a text with a loaded model.

Both the prover and the checker compute the hidden states in one forward pass over the whole text.
So a proof costs the prover one more pass after the text is generated, and the two passes may use
different devices, number formats and attention kernels: the limits in `proofs/hidden_states` allow
for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from p2ptrain.errors import RemoteProtocolError, TrainerDiverged
from p2ptrain.proofs.hidden_states import Bits, chunks_of, compare, encode
from p2ptrain.proofs.text_proof import Agreement, TextProof
from p2ptrain.trainer.rank.model import Llama, rotary_table

POSITIONS_AT_ONCE = 256
"""Positions whose logits are computed at once. With a vocabulary of 128,000 they take 130 MB."""


@dataclass(frozen=True, slots=True)
class TextCheck:
    """The result of checking a text. `loss_nats` is the mean loss of the continuation: minus the
    logarithm of the probability that the model gives to each of its tokens."""

    agreement: Agreement
    loss_nats: float


@torch.inference_mode()
def last_hidden_states(model: Llama, tokens: Sequence[int]) -> Tensor:
    """Return the normalised output of the last block for each token: [tokens, width].

    The table of rotary angles is only as long as the text. The model's own table has an entry for
    each position of its context, and a config.json from anybody may claim a very long context.
    """
    device = model.embedding.weight.device
    spec = model.spec
    x = model.embedding(torch.tensor([list(tokens)], device=device))
    rotary = rotary_table(len(tokens), spec.head_width, spec.rope_base, device)
    for block in model.blocks:
        x = block(x, rotary, None)
    states: Tensor = model.norm(x)[0]
    return states


def bits_of(states: Tensor) -> Bits:
    """Return hidden states [tokens, width] of any precision as the bits of bf16 numbers."""
    words = states.to(torch.bfloat16).contiguous().cpu().view(torch.int16)
    return words.numpy().view(np.uint16)


def proofs_of(states: Tensor) -> tuple[bytes, ...]:
    """Return the proofs of the hidden states [tokens, width] of one text.

    Raises:
        ValueError: the text has fewer tokens than a chunk.
        TrainerDiverged: the states are not finite, or mostly zero.
    """
    chunks = chunks_of(bits_of(states))
    try:
        return tuple(encode(chunks))
    except ValueError as exc:
        raise TrainerDiverged(f"the text cannot be proved: {exc}") from exc


def check_text(model: Llama, proof: TextProof) -> TextCheck:
    """Compute the hidden states of the proof's tokens, and compare them with its proofs.

    Raises:
        RemoteProtocolError: the tokens cannot be a text of this model, or a proof is malformed.
        TrainerDiverged: the hidden states are not finite, or mostly zero.
    """
    spec = model.spec
    if len(proof.tokens) > spec.sequence or max(proof.tokens) >= spec.vocab:
        raise RemoteProtocolError("the text has tokens or positions that the model does not have")
    states = last_hidden_states(model, proof.tokens)
    try:
        matches = tuple(compare(chunks_of(bits_of(states)), proof.proofs))
    except ValueError as exc:
        raise TrainerDiverged(f"the text cannot be checked: {exc}") from exc
    agreement = Agreement(len(proof.tokens), matches)
    return TextCheck(agreement, _loss(model, states, proof))


@torch.inference_mode()
def _loss(model: Llama, states: Tensor, proof: TextProof) -> float:
    """Return the mean loss in nats of the tokens after the prompt."""
    before = states[proof.prompt - 1 : -1]
    targets = torch.tensor(proof.tokens[proof.prompt :], device=states.device)
    total = 0.0
    for some, wanted in zip(
        before.split(POSITIONS_AT_ONCE), targets.split(POSITIONS_AT_ONCE), strict=True
    ):
        total += float(F.cross_entropy(model.head(some).float(), wanted, reduction="sum"))
    return total / len(targets)
