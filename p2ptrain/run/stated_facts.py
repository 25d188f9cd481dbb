"""Facts that a peer states about its machine when it asks to join: its device, and the kind of
address at which others may reach it.

They are the peer's own word, and nobody checks them. They travel at the end of the note, as in
"Ada, two H100s {device=cuda reach=private}": earlier versions of p2ptrain refuse a request with an
unknown field, while they show a note. A later version may state more facts, so unknown names are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

WORD_CHARACTERS_MAX = 32

DEVICE_WORDS = {"none": "does not train"}
REACH_WORDS = {
    "announced": "announces its address",
    "public": "has a public address",
    "private": "is probably behind a router",
    "outbound": "cannot be dialled",
}
"""Words for what a peer says about its address. Before it is admitted, it does not know whether
members reach it."""

_WORD = f"[a-z][a-z-]{{0,{WORD_CHARACTERS_MAX - 1}}}"
_FACT = f"{_WORD}={_WORD}"
_NOTE = re.compile(rf"(?P<note>.*?) ?\{{(?P<facts>{_FACT}(?: {_FACT})*)\}}")


def is_word(text: str) -> bool:
    """Return whether `text` can be the value of a fact."""
    return re.fullmatch(_WORD, text) is not None


def with_facts(note: str, facts: Mapping[str, str], *, characters_max: int) -> str:
    """Return `note` with `facts` at its end, without those whose value is empty. Return `note`
    alone if both together are longer than `characters_max`."""
    stated = " ".join(f"{name}={value}" for name, value in facts.items() if value)
    whole = f"{note} {{{stated}}}".lstrip() if stated else note
    return whole if len(whole) <= characters_max else note


def without_facts(text: str) -> tuple[str, dict[str, str]]:
    """Separate a note from the facts at its end. `text` must have a bounded length."""
    found = _NOTE.fullmatch(text)
    if found is None:
        return text, {}
    pairs = (each.partition("=") for each in found["facts"].split(" "))
    return found["note"], {name: value for name, _, value in pairs}


def in_words(device: str, reach: str) -> str:
    """Return what a peer says about its machine, such as "cuda, has a public address (as
    reported)"; "" if it did not say anything."""
    words = DEVICE_WORDS.get(device, device), REACH_WORDS.get(reach, "")
    stated = ", ".join(filter(None, words))
    return f"{stated} (as reported)" if stated else ""
