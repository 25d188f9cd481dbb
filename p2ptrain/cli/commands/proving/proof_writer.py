"""Write the proof of a text that `p2ptrain chat --prove` has generated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.cli.output import progress
from p2ptrain.errors import ConfigError

if TYPE_CHECKING:
    from p2ptrain.cli.chat_model import ChatModel
    from p2ptrain.export.certificate import SnapshotCertificate
    from p2ptrain.trainer.rank.model import Llama


@dataclass(frozen=True, slots=True)
class ProofWriter:
    """Writes one proof to `file`, which does not exist yet."""

    file: Path

    @classmethod
    def to(cls, file: Path) -> ProofWriter:
        """Raises ConfigError: `file` exists, or its folder does not."""
        if os.path.lexists(file):
            raise ConfigError(f"{file} already exists", do="choose another file for --prove")
        if not file.parent.is_dir():
            raise ConfigError(f"there is no folder {file.parent}", do="create it first")
        return cls(file)

    def certificate_of(self, speaker: ChatModel) -> SnapshotCertificate:
        """Return the certificate of the model's weights. Raises ConfigError: there is none."""
        from p2ptrain.cli.commands.proving.certificate_file import certificate_in

        return certificate_in(speaker.folder).certificate

    def room_for(self, text: Sequence[int], model: Llama) -> int:
        """Return how many tokens can follow the prompt `text`, because a proof is of one forward
        pass, which has a position for each token. Raises ConfigError: none can."""
        room = model.spec.sequence - len(text)
        if room < 1:
            raise ConfigError(
                f"the prompt has {len(text)} tokens, and a text that is proved must fit into the "
                f"model's context of {model.spec.sequence}",
                do="use a shorter prompt",
            )
        return room

    def write(
        self,
        model: Llama,
        certificate: SnapshotCertificate,
        prompt: Sequence[int],
        tokens: Sequence[int],
    ) -> None:
        """Prove the text with one forward pass, and write the file. Raises ConfigError
        (PROOF-SHORT): the text has too few tokens."""
        from p2ptrain.proofs.hidden_states import TOKENS
        from p2ptrain.proofs.text_proof import TextProof
        from p2ptrain.trainer.tools.proving import last_hidden_states, proofs_of

        text = [*prompt, *tokens]
        if len(text) < TOKENS or not tokens:
            raise ConfigError(
                f"a proof needs a continuation and {TOKENS} tokens in total; this text has "
                f"{len(text)}, of which {len(tokens)} were generated",
                code="PROOF-SHORT",
                do="use a longer prompt, or more --tokens",
            )
        proofs = proofs_of(last_hidden_states(model, text))
        run = certificate.verified().run
        proof = TextProof(run.id, certificate.to_bytes(), tuple(text), len(prompt), proofs)
        data = proof.to_bytes()
        with self.file.open("xb") as file:
            file.write(data)
        progress(f"wrote the proof, {len(data)} bytes, to {self.file}")
