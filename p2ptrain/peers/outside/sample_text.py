"""A text that the model wrote, signed by the member that let it write.

The member is chosen by a hash of the run and the outer step over the ledger's members, so all nodes
know it without agreeing on anything new. If the chosen member is gone or does not train, the sample
of that step is missing. The text is its signer's claim: a member could sign any text. It can do no
harm beyond being read, because its length is bounded and readers show it as plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from p2ptrain.encoding import pack, unpack
from p2ptrain.identity import Identity
from p2ptrain.ids import PeerId, RunId, is_digest
from p2ptrain.run.envelope import Signed
from p2ptrain.run.outside_facts import PROMPTS_MAX
from p2ptrain.run.reading import from_plain, plain

KIND = "sample"
TEXT_CHARACTERS_MAX = 1000
RECORD_BYTES_MAX = 8192
"""Maximum sizes: 64 tokens have about 300 characters; a character has up to four bytes."""

TOKENS_MAX = 64
"""Number of tokens that the model writes for each prompt."""

COUNT_MAX = 2**53


def shown(text: str) -> str:
    """Return `text` in the form in which samples travel: at most `TEXT_CHARACTERS_MAX` characters,
    with a replacement for each one that is not printable, except line ends."""
    cut = text[:TEXT_CHARACTERS_MAX]
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in cut)


@dataclass(frozen=True, slots=True)
class SampleText:
    """The text with which the model continued prompt number `prompt`, with the θ of outer step
    `step`. `text` does not contain the prompt."""

    run: RunId
    step: int
    prompt: int
    text: str

    def __post_init__(self) -> None:
        if not is_digest(self.run):
            raise ValueError("the run is not a run id")
        if not (0 < self.step <= COUNT_MAX and 0 <= self.prompt < PROMPTS_MAX):
            raise ValueError("step or prompt is out of range")
        if self.text != shown(self.text):
            raise ValueError(
                f"text has more than {TEXT_CHARACTERS_MAX} characters, or unprintable ones"
            )

    def to_bytes(self, identity: Identity) -> bytes:
        """Return the sample, signed by `identity`."""
        return Signed.by(identity, KIND, pack(plain(self))).to_bytes()


def read_sample(data: bytes) -> tuple[PeerId, SampleText]:
    """Return the signer and the sample. Raises RemoteProtocolError: the sample is malformed, or the
    signature is wrong."""
    signed = Signed.from_bytes(data, kind=KIND, bytes_max=RECORD_BYTES_MAX)
    value = unpack(signed.payload, bytes_max=RECORD_BYTES_MAX)
    return signed.signer, from_plain(SampleText, value, "a sample")


def sampler_of(run: RunId, step: int, members: Sequence[PeerId]) -> PeerId | None:
    """Return the member that samples the θ of outer step `step`: the one whose hash with the run
    and the step is the smallest. None if there are no members.

    If another member leaves or joins, the choice usually stays the same. So nodes that know
    slightly different members usually agree.
    """

    def place(peer: PeerId) -> bytes:
        return sha256(f"p2ptrain sample {run} {step} {peer}".encode()).digest()

    return min(members, key=place, default=None)
