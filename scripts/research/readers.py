"""Measure how readable the prose of this repository is to people who did not write it.

Each reader gets 40 random files and three pages, and marks two kinds of sentences: those that were
not understood at first reading ("unclear"), and those that read like a literal translation
("foreign"). The samples are fixed by the number of the reader. From the root of the repository:

    python -m scripts.research.readers sample 1              the files of reader 1
    python -m scripts.research.readers rates MARKS...        rates from files of marks

A file of marks is named `reader-N.jsonl`. Each line is an object with the fields `file`, `line`,
`kind`, `sentence`, `why` and `better`. Beside it, `reader-N.files` lists the files that were read.
The rates refer to the number of sentences that these files have now.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

from tests.architecture.sources import ROOT, Module, modules, modules_of_tests
from tests.architecture.test_language import messages, prose, sentences

PAGES = ("README.md", "ARCHITECTURE.md", "p2ptrain/ledger/SPEC.md")

FILES = 40

KINDS = ("unclear", "foreign")

WORDS_MIN = 3
"""Minimum number of words of a sentence. Shorter texts are labels."""


def sample(reader: int) -> list[Module]:
    """Return the 40 modules of this reader. Modules without three sentences are not drawn."""
    known = [each for each in (*modules(), *modules_of_tests()) if count(each) >= 3]
    return random.Random(f"reader {reader}").sample(known, FILES)


def count(module: Module) -> int:
    """Return the number of sentences in docstrings, comments and messages."""
    found = [each for text in prose(module) for each in sentences(text)]
    return sum(len(each.split()) >= WORDS_MIN for each in (*found, *messages(module)))


def count_page(name: str) -> int:
    text = re.sub(r"(?s)```.*?```", "", (ROOT / name).read_text(encoding="utf-8"))
    return sum(len(each.split()) >= WORDS_MIN for each in sentences(text))


def print_rates(paths: list[Path]) -> None:
    """Print the number of sentences and the rates, for each reader and for all."""
    everything, read = Counter[str](), 0
    everywhere = (*modules(), *modules_of_tests())
    for path in paths:
        marks = Counter(json.loads(line)["kind"] for line in path.read_text().splitlines() if line)
        read_here = set(path.with_suffix(".files").read_text().split())
        size = sum(map(count_page, PAGES))
        size += sum(count(each) for each in everywhere if each.where in read_here)
        everything, read = everything + marks, read + size
        sys.stdout.write(_row(path.stem, size, marks))
    sys.stdout.write(_row("all", read, everything))


def _row(name: str, size: int, marks: Counter[str]) -> str:
    return (
        " ".join((name, str(size), *(f"{kind} {marks[kind] / size:.2%}" for kind in KINDS))) + "\n"
    )


def main() -> None:
    match sys.argv[1:]:
        case ["sample", reader]:
            for module in sample(int(reader)):
                sys.stdout.write(f"{module.where}\n")
        case ["rates", *paths] if paths:
            print_rates([Path(each) for each in paths])
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
