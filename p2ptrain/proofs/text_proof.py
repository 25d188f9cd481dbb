"""The file that proves which weights generated a text, as bytes and as a value.

    version       1
    run           the run's id
    certificate   names the weights; `export/certificate` decodes it
    tokens        the whole text: the prompt, and the tokens after it
    prompt        the number of tokens of the prompt
    proofs        one proof of hidden states for each chunk of the text, one after the other

Such a file needs no signature: the checker computes the hidden states of the tokens with the
certified weights, and only the right ones fit the proofs. `p2ptrain chat --prove` writes the file,
and `p2ptrain proof check` reads it.

This module does not know whether the certificate is valid, or how tokens become a text.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ids import RunId, is_digest
from p2ptrain.proofs.hidden_states import PROOF_BYTES, TOKENS, Match, chunk_starts

VERSION = 1
TOKENS_MAX = 2**20
"""Maximum number of tokens of a text: more than any model's context has today. Such a text takes
14 MB: up to five bytes for a token, and eight for its share of a proof."""

TOKEN_MAX = 2**24
CERTIFICATE_BYTES_MAX = 2 * 2**20
FILE_BYTES_MAX = CERTIFICATE_BYTES_MAX + TOKENS_MAX * 14 + 1024


@dataclass(frozen=True, slots=True)
class TextProof:
    """A text, and the proof of the weights that generated it. The first `prompt` tokens are the
    prompt. The constructor raises RemoteProtocolError: the parts do not belong together."""

    run: RunId
    certificate: bytes
    tokens: tuple[int, ...]
    prompt: int
    proofs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not is_digest(self.run) or len(self.certificate) > CERTIFICATE_BYTES_MAX:
            raise RemoteProtocolError("a proof of a text does not name a run and a certificate")
        if not 0 < self.prompt < len(self.tokens) <= TOKENS_MAX:
            raise RemoteProtocolError("a proof of a text needs a prompt and a continuation")
        if not all(type(each) is int and 0 <= each <= TOKEN_MAX for each in self.tokens):
            raise RemoteProtocolError("a proof of a text has an invalid token")
        try:
            count = len(chunk_starts(len(self.tokens)))
        except ValueError as exc:
            raise RemoteProtocolError(str(exc)) from exc
        if [len(each) for each in self.proofs] != count * [PROOF_BYTES]:
            raise RemoteProtocolError("a proof of a text does not have one proof for each chunk")

    def to_bytes(self) -> bytes:
        return pack(
            {
                "version": VERSION,
                "run": self.run,
                "certificate": self.certificate,
                "tokens": self.tokens,
                "prompt": self.prompt,
                "proofs": b"".join(self.proofs),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> TextProof:
        """Decode a file, which may come from anybody. Raises RemoteProtocolError."""
        value = unpack(data, bytes_max=FILE_BYTES_MAX)
        types = {"version": int, "run": str, "certificate": bytes}
        found = fields(value, **types, tokens=list, prompt=int, proofs=bytes)
        run, certificate, prompt = found["run"], found["certificate"], found["prompt"]
        tokens, proofs = found["tokens"], found["proofs"]
        if found["version"] != VERSION:
            raise RemoteProtocolError("a proof of a text has an unknown version")
        assert isinstance(run, str)
        assert isinstance(certificate, bytes)
        assert isinstance(prompt, int)
        assert isinstance(tokens, list)
        assert isinstance(proofs, bytes)
        pieces = [proofs[at : at + PROOF_BYTES] for at in range(0, len(proofs), PROOF_BYTES)]
        return cls(RunId(run), certificate, tuple(tokens), prompt, tuple(pieces))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparison of a text of `tokens` tokens with its proofs, chunk by chunk."""

    tokens: int
    matches: tuple[Match, ...]

    @property
    def agreed(self) -> int:
        """The number of tokens in the chunks before the first one that does not fit; all tokens if
        every chunk fits. The last chunk may overlap the one before it, but no other chunk does."""
        misfits = (index for index, match in enumerate(self.matches) if not match.fits)
        return next((index * TOKENS for index in misfits), self.tokens)

    @property
    def fits(self) -> bool:
        return self.agreed == self.tokens

    @property
    def worst(self) -> Match:
        """The largest number of mismatches and the largest mantissa error, of all chunks."""
        mismatches = max(each.mismatches for each in self.matches)
        return Match(mismatches, max(each.mantissa_error for each in self.matches))
