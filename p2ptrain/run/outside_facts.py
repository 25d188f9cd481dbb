"""The parts of a manifest for people outside the run: what the run is, what strangers may get, and
the texts that the model continues from time to time.

All three parts are optional. A manifest leaves out a part that has its defaults, so manifests of
earlier versions keep their bytes and their digests. By default, strangers get nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

DESCRIPTION_CHARACTERS_MAX = 500
LICENCE_CHARACTERS_MAX = 100
CONTACT_CHARACTERS_MAX = 200
PROMPTS_MAX = 8
PROMPT_CHARACTERS_MAX = 200
"""Maximum numbers of characters and prompts. All texts together have at most 2,400 characters, or
9.6 kB, of a manifest's 64 kB."""

SAMPLES_EVERY_MAX = 2**48


def _check_line(name: str, text: object, characters_max: int) -> None:
    if not isinstance(text, str) or len(text) > characters_max or not text.isprintable():
        raise ValueError(f"{name} is not one line of at most {characters_max} printable characters")


@dataclass(frozen=True, slots=True)
class About:
    """The words of the organiser about the run. Each text may be empty, and nothing checks it: only
    the organiser's signature stands behind it."""

    description: str = ""
    licence: str = ""
    contact: str = ""

    def __post_init__(self) -> None:
        _check_line("description", self.description, DESCRIPTION_CHARACTERS_MAX)
        _check_line("licence", self.licence, LICENCE_CHARACTERS_MAX)
        _check_line("contact", self.contact, CONTACT_CHARACTERS_MAX)


@dataclass(frozen=True, slots=True)
class Public:
    """The things that peers may get without being admitted.

    `telemetry`: the ledger, and signed records of the loss. The ledger names the members by their
    peer ids, because its signatures cannot be checked otherwise. `weights`: the snapshots, the
    updates and the tokenizer, but not the training data. `names`: whether records, pages and
    reports for strangers also name the peers.
    """

    telemetry: bool = False
    weights: bool = False
    names: bool = False

    def __post_init__(self) -> None:
        if not all(type(each) is bool for each in (self.telemetry, self.weights, self.names)):
            raise ValueError("telemetry, weights or names is not true or false")


@dataclass(frozen=True, slots=True)
class SamplePrompts:
    """The texts that the model continues, every `every` outer steps. No prompts: no samples."""

    prompts: tuple[str, ...] = ()
    every: int = 10

    def __post_init__(self) -> None:
        if len(self.prompts) > PROMPTS_MAX:
            raise ValueError(f"{len(self.prompts)} prompts exceed {PROMPTS_MAX}")
        for prompt in self.prompts:
            _check_line("prompts", prompt, PROMPT_CHARACTERS_MAX)
            if not prompt:
                raise ValueError("a prompt is empty")
        if type(self.every) is not int or not 1 <= self.every <= SAMPLES_EVERY_MAX:
            raise ValueError(f"every is {str(self.every)[:80]}")

    def is_due(self, step: int) -> bool:
        """Return whether θ of outer step `step` is sampled: the first weights are not."""
        return bool(self.prompts) and step > 0 and step % self.every == 0


NOTHING_SAID, NOTHING_PUBLIC, NO_SAMPLES = About(), Public(), SamplePrompts()
