"""The run's tokenizer in an exported folder: the same bytes, and the roles of its special tokens.

The exported tokenizer.json has the bytes that the organiser published. A role is "the token that
begins a text" (bos), "the token that ends a text" (eos) and so on. If the run marks the beginning
of each document with a token, that token is bos. Otherwise bos is found by its usual names, as are
the tokens of the other roles. A role for which no token is found is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from p2ptrain.data.vocabulary import BEGINNINGS, END_OF_TEXT, ENDINGS, NUCLEOTIDES
from p2ptrain.errors import ManifestInvalid

ROLES = {
    "bos": BEGINNINGS,
    "eos": (*ENDINGS, END_OF_TEXT),
    "pad": ("<|pad|>", "<pad>", "[PAD]"),
    "unk": ("<|unk|>", "<unk>", "[UNK]"),
}
"""Usual names of the special token for each role. The first name that the tokenizer has is used, as
when data are packed. <|endoftext|> separates documents, so it both begins and ends a document."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """tokenizer.json, and the names and ids of its special tokens by role."""

    json_bytes: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    example: str = "Once upon"
    """A text that the tokenizer can encode. The model card suggests it as a first prompt."""

    @classmethod
    def of(cls, json_bytes: bytes, begin: int | None = None) -> Tokenizer:
        """Return the tokenizer in `json_bytes`. `begin` is the token with which the run's documents
        begin, if the run marks them.

        Raises ManifestInvalid: the bytes are not a JSON object.
        """
        try:
            tree = json.loads(json_bytes)
        except ValueError as exc:
            raise ManifestInvalid(f"the run's tokenizer is not JSON: {exc}") from exc
        if not isinstance(tree, dict):
            raise ManifestInvalid("the run's tokenizer is not a JSON object")
        added = dict(_added(tree))
        special = dict(_added(tree, special=True))
        names = {
            role: next(name for names in (special, added) for name in usual if name in names)
            for role, usual in ROLES.items()
            if not added.keys().isdisjoint(usual)
        }
        called = {number: name for name, number in added.items()}
        if begin in called:
            names["bos"] = called[begin]
        numbers = {role: added[name] for role, name in names.items()}
        if _letters(tree) <= set(NUCLEOTIDES):
            return cls(json_bytes, names, numbers, "ACGTACGT")
        return cls(json_bytes, names, numbers)

    def config(self, sequence: int) -> dict[str, object]:
        """Return the content of tokenizer_config.json."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": sequence,
            # Without this list, transformers 4 would add token_type_ids, which `generate` refuses.
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": name for role, name in sorted(self.names.items())},
        }


def _letters(tree: Mapping[str, object]) -> set[str]:
    """Return the one-character tokens: letters, or byte-level symbols for bytes."""
    model = tree.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    return {name for name in vocab if len(name) == 1} if isinstance(vocab, dict) else {"?"}


def _added(tree: Mapping[str, object], *, special: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the names and ids of the tokens that were added to the vocabulary. If `special`, yield
    only the special tokens, which ordinary text never produces."""
    added = tree.get("added_tokens")
    for each in added if isinstance(added, list) else ():
        match each:
            case {"content": str(name), "id": int(number)} if each.get("special") or not special:
                yield name, number
