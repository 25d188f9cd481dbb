"""The rules of language that a machine can check: headless sentences, and sentences that are too
long.

A sentence that begins with a relative clause without a noun ("Who is gone leaves a hole") has to be
read twice. So has a sentence of more than 40 words. CONTRIBUTING.md has the other rules.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.architecture.sources import ROOT, Module, modules_of_tests, programs

HEADLESS = re.compile(r"(Who|Whoever|Whom|Whomever|Whose|What|Whatever|Which|Whichever)\b")

WORDS_MAX = 40

ENDS = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][*)])|(?<=[.!?]\*\*))\s+(?=[A-Z`\"*(])")

ALLOWED = (
    "Other statuses: 1 a fault of p2ptrain",  # a list with a semicolon for each item
    "It was: a and b had both accepted it",  # the next sentence begins with the peer c
)
"""Sentences that are clear to a reader all the same, by their first words."""


TABLE = re.compile(r"\S {3,}\S|[│─►]|^\s*\||^ {4}", re.MULTILINE)
"""Tables, diagrams and examples are not sentences."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring, comment or page, including list items."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not TABLE.search(paragraph):
            plain = re.sub(r"^\s*(?:[-*]|\d+\.|#+|>) ", "", paragraph)
            for sentence in ENDS.split(" ".join(plain.split())):
                yield sentence.strip()


def prose(module: Module) -> Iterator[str]:
    """Yield docstrings, including those of fields and constants, and blocks of comments."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            yield clean(node.value.value)
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("#: "))
        elif token.type != tokenize.NL and comment:
            yield "\n".join(comment)
            comment.clear()


def clean(text: str) -> str:
    first, _, rest = text.partition("\n")
    return first.strip() + "\n" + re.sub(r"(?m)^ {4,8}(?! )", "", rest)


def headless(sentence: str) -> bool:
    return HEADLESS.match(sentence) is not None and not sentence.endswith("?")


def endless(sentence: str) -> bool:
    """Items of a list separated by semicolons are counted one by one."""
    return any(len(item.split()) > WORDS_MAX for item in sentence.split(";"))


def found(module: Module) -> Iterator[str]:
    for text in prose(module):
        for sentence in sentences(text):
            if headless(sentence) or endless(sentence):
                yield f"{module.where}: {sentence[:90]}"


PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "p2ptrain/ledger/SPEC.md",
)


def of_page(name: str) -> Iterator[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^#.*$", "", re.sub(r"(?s)```.*?```", "", text))
    for sentence in sentences(re.sub(r"\]\([^)]*\)", "]", text)):
        if headless(sentence) or endless(sentence):
            yield f"{name}: {sentence[:90]}"


def test_pages_have_no_headless_and_no_endless_sentences() -> None:
    faults = [fault for name in PAGES for fault in of_page(name)]
    assert [fault for fault in faults if not any(each in fault for each in ALLOWED)] == []


def test_pattern_finds_headless_sentences_but_no_questions() -> None:
    assert headless("Who is gone leaves a hole.")
    assert headless("What comes too late is dropped.")
    assert not headless("Who may answer?")
    assert not headless("Whether the peer is up.")
    assert not headless("A departed member leaves a hole.")


def test_code_and_tests_have_no_headless_and_no_endless_sentences() -> None:
    read = {module.where: module for module in (*programs(), *modules_of_tests())}
    faults = [fault for module in read.values() for fault in found(module)]
    assert [fault for fault in faults if not any(each in fault for each in ALLOWED)] == []
