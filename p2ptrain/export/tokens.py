"""The run's tokenizer as an exported folder carries it: the same bytes, and how to use them.

tokenizer.json is what the organiser published, byte for byte. Which of its special tokens begins a
text is what the run marks its documents with, if it does. Else it is known by its usual names, as
is what ends one; a tokenizer without such names is exported without.
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
"""The first of these names that a tokenizer has, as in packing. <|endoftext|> stands between
documents, so it begins one as well as it ends one."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """tokenizer.json, and its special tokens by role: what they are called, and their numbers."""

    json_bytes: bytes
    names: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    example: str = "Once upon"
    """A text that it can spell, to try the model with."""

    @classmethod
    def of(cls, json_bytes: bytes, begin: int | None = None) -> Tokenizer:
        """`begin`: the token with which the run's documents begin, where it marks them.

        Raises ManifestInvalid: the bytes are no JSON object.
        """
        try:
            tree = json.loads(json_bytes)
        except ValueError as exc:
            raise ManifestInvalid(f"the run's tokenizer is not JSON: {exc}") from exc
        if not isinstance(tree, dict):
            raise ManifestInvalid("the run's tokenizer is no JSON object")
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
        """tokenizer_config.json."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": sequence,
            # transformers 4 would make token_type_ids as well, which `generate` refuses.
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **{f"{role}_token": name for role, name in sorted(self.names.items())},
        }


def _letters(tree: Mapping[str, object]) -> set[str]:
    """The shortest that it spells with: letters, or bytes in disguise."""
    model = tree.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    return {name for name in vocab if len(name) == 1} if isinstance(vocab, dict) else {"?"}


def _added(tree: Mapping[str, object], *, special: bool = False) -> Iterator[tuple[str, int]]:
    """Those beside the learnt ones, or only what no text can spell."""
    added = tree.get("added_tokens")
    for each in added if isinstance(added, list) else ():
        match each:
            case {"content": str(name), "id": int(number)} if each.get("special") or not special:
                yield name, number
