"""The newest samples of a run, as their signers published them."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2ptrain.ids import PeerId
from p2ptrain.peers.outside.sample_text import SampleText

SAMPLES_MAX = 64
"""Maximum number of samples that are kept: eight prompts of eight steps, about half a megabyte at
most. The series keeps older ones."""


@dataclass(frozen=True, slots=True)
class KeptSample:
    """A sample, its signer, and its signed bytes."""

    signer: PeerId
    sample: SampleText
    signed: bytes


@dataclass(slots=True)
class SampleBook:
    """Keeps one sample for each outer step and prompt: the first one. `kept` has the oldest outer
    steps first."""

    kept: dict[tuple[int, int], KeptSample] = field(default_factory=dict)

    def note(self, signer: PeerId, sample: SampleText, signed: bytes) -> bool:
        """Keep a sample. Return False if there was one for its step and prompt, or if all kept ones
        are newer."""
        key = sample.step, sample.prompt
        if key in self.kept:
            return False
        self.kept = dict(sorted({**self.kept, key: KeptSample(signer, sample, signed)}.items()))
        while len(self.kept) > SAMPLES_MAX:
            del self.kept[next(iter(self.kept))]
        return key in self.kept

    def after(self, step: int) -> tuple[bytes, ...]:
        """Return the signed samples of the outer steps above `step`, oldest first."""
        return tuple(each.signed for (of, _), each in self.kept.items() if of > step)
