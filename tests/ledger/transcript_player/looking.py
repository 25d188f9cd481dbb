"""The facts about ledgers that a transcript can check: `expect WHO WHAT VALUE…`.

WHO is a list of names separated by commas, or `*` for all running ledgers. WHAT is a key of
`_FACTS`, or `notes`, `same-head` or `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2ptrain.ids import PeerId
from p2ptrain.ledger.core import Ledger
from p2ptrain.ledger.queries import branch_words
from p2ptrain.testing.ledgers import LedgerGroup
from tests.ledger.transcript_player.auditing import drawn_for
from tests.ledger.transcript_player.wording import Words

Fact = Callable[[Ledger, Words, Sequence[str]], str]
"""A function fact(ledger, words, details) that returns the actual value."""


def disagreement(group: LedgerGroup, words: Sequence[str], spelling: Words) -> str:
    """Return a description of the actual value if it differs from the expected one, else an empty
    string.
    """
    who, what, *said = words
    names = sorted(group.ledgers) if who == "*" else [PeerId(name) for name in who.split(",")]
    if what == "notes":
        return _never_noted(group, names, " ".join(said), spelling)
    if what == "same-head":
        return "" if len({group.ledgers[name].state.head for name in names}) == 1 else "they differ"
    if what == "running":
        return "" if all(name in group.ledgers for name in names) else "not all run"
    if what not in _FACTS:
        return f"there is no fact {what!r}"
    known = 1 if what in _WITH_A_DETAIL else 0
    for name in names:
        real = _FACTS[what](group.ledgers[name], spelling, said[:known])
        if real != " ".join(said[known:]):
            return f"{name} has {real or 'nothing'}"
    return ""


def _never_noted(group: LedgerGroup, names: Sequence[PeerId], text: str, spelling: Words) -> str:
    for name in names:
        notes = [spelling.text(note) for peer, note in group.notes if peer == name]
        if not any(text in note for note in notes):
            return f"{name} noted {notes[-1] if notes else 'nothing'}"
    return ""


def _entry(ledger: Ledger, words: Words, details: Sequence[str]) -> str:
    certified = ledger.kept.at(int(details[0]))
    return "" if certified is None else words.value(certified.entry.value)


def _votes(ledger: Ledger, words: Words, details: Sequence[str]) -> str:
    """Return the voters that signed the entry at a height."""
    certified = ledger.kept.at(int(details[0]))
    return "" if certified is None else " ".join(sorted(certified.certificate.voters))


def _lease(ledger: Ledger, words: Words, details: Sequence[str]) -> str:
    return " ".join(map(str, ledger.state.leases.get(PeerId(details[0]), ())))


def _tokens(ledger: Ledger, words: Words, details: Sequence[str]) -> str:
    return str(ledger.state.tokens_by_peer.get(PeerId(details[0]), 0))


def _update(ledger: Ledger, words: Words, details: Sequence[str]) -> str:
    committed = ledger.updates.get(int(details[0]))
    return words.name(committed.update) if committed else "none"


def _terms(ledger: Ledger) -> str:
    """Return the agreed amendments, each with the outer step from which it is in force."""
    return " ".join(f"{each.number}@{each.step}" for each in ledger.state.terms)


_FACTS: dict[str, Fact] = {
    "height": lambda ledger, words, details: str(ledger.state.height),
    "step": lambda ledger, words, details: str(ledger.state.step),
    "attempt": lambda ledger, words, details: str(ledger.state.attempt),
    "phase": lambda ledger, words, details: ledger.state.phase.value,
    "voters": lambda ledger, words, details: " ".join(ledger.state.voters),
    "learners": lambda ledger, words, details: " ".join(ledger.state.learners),
    "returned": lambda ledger, words, details: " ".join(map(str, ledger.state.lease_book.returned)),
    "waits": lambda ledger, words, details: " ".join(ledger.status(0.0).waiting_for),
    "branch": lambda ledger, words, details: words.text(branch_words(ledger.state)),
    "line": lambda ledger, words, details: words.name(ledger.state.line),
    "round": lambda ledger, words, details: str(ledger.status(0.0).round),
    "terms": lambda ledger, words, details: _terms(ledger),
    "auditors": lambda ledger, words, details: " ".join(ledger.state.auditors),
    "excluded": lambda ledger, words, details: " ".join(sorted(ledger.state.excluded)),
    "drawn": lambda ledger, words, details: drawn_for(ledger.state, PeerId(details[0])),
    "entry": _entry,
    "votes": _votes,
    "lease": _lease,
    "tokens": _tokens,
    "update": _update,
}

_WITH_A_DETAIL = {"drawn", "entry", "votes", "lease", "tokens", "update"}
