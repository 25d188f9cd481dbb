"""The language rules that a program can check: no headless sentences, and no sentences that are too
long.

A headless sentence begins with a relative clause without a noun ("Who is gone leaves a hole"). Such
a sentence has to be read twice, and so has a sentence of more than 40 words. The rules apply to
docstrings, comments, pages, and string literals, which a program may show to a user.
CONTRIBUTING.md has the other rules.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.architecture.sources import ROOT, Module, modules, modules_of_tests, programs

HEADLESS = re.compile(r"(Who|Whoever|Whom|Whomever|Whose|What|Whatever|Which|Whichever)\b")

WORDS_MAX = 40

ENDS = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][*)])|(?<=[.!?]\*\*))\s+(?=[A-Z`\"*(])")

TABLE = re.compile(r"\S {3,}\S|[│─►]|^\s*\||^ {4}", re.MULTILINE)
"""Matches tables, diagrams and examples, which are not sentences."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring, comment or page, including list items."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not TABLE.search(paragraph):
            plain = re.sub(r"^\s*(?:[-*]|\d+\.|#+|>) ", "", paragraph)
            for sentence in ENDS.split(" ".join(plain.split())):
                yield sentence.strip()


def prose(module: Module) -> Iterator[str]:
    """Yield docstrings, including those of fields and constants, and blocks of comments."""
    for node in module.nodes:
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
    """Return whether the sentence is too long. Items separated by semicolons count separately."""
    return any(len(item.split()) > WORDS_MAX for item in sentence.split(";"))


def found(module: Module) -> Iterator[str]:
    for text in prose(module):
        for sentence in sentences(text):
            if headless(sentence) or endless(sentence):
                yield f"{module.where}: {sentence[:90]}"


PHRASE = re.compile(r"(?<=[.;:!?]) ")
"""The space between two phrases of a message. A phrase need not begin with a capital letter."""

MESSAGE_WORDS_MIN = 3


def messages(module: Module) -> Iterator[str]:
    """Yield the string literals that can be messages, with `…` for each field of an f-string. Leave
    out docstrings, names, and texts of several lines, such as programs and tables.
    """
    inside = {id(part) for node in module.nodes for part in _no_messages(node)}
    for node in module.nodes:
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text.split()) >= MESSAGE_WORDS_MIN and "\n" not in text.strip():
            yield text


def _no_messages(node: ast.AST) -> Iterator[ast.AST]:
    """Yield docstrings and the parts of f-strings."""
    if isinstance(node, ast.Expr):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from ast.walk(part)


def headless_message(phrase: str) -> bool:
    return headless(phrase[:1].upper() + phrase[1:])


def of_messages(module: Module) -> Iterator[str]:
    for text in messages(module):
        for phrase in PHRASE.split(text.strip()):
            if len(phrase.split()) >= MESSAGE_WORDS_MIN and headless_message(phrase):
                yield f"{module.where}: {phrase[:90]}"
            if endless(phrase):
                yield f"{module.where}: {phrase[:90]}"


PAGES = (
    "*.md",
    "bootstrap/*.md",
    "docs/**/*.md",
    "p2ptrain/ledger/SPEC.md",
)


def of_page(name: str) -> Iterator[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^#.*$", "", re.sub(r"(?s)```.*?```", "", text))
    for sentence in sentences(re.sub(r"\]\([^)]*\)", "]", text)):
        if headless(sentence) or endless(sentence):
            yield f"{name}: {sentence[:90]}"


def test_pages_have_no_headless_or_overlong_sentences() -> None:
    pages = sorted({str(path.relative_to(ROOT)) for each in PAGES for path in ROOT.glob(each)})
    assert {"README.md", "docs/metrics.md", "docs/results/chaos.md"} <= set(pages)
    assert [fault for name in pages for fault in of_page(name)] == []


def test_headless_sentences_are_found_but_questions_are_not() -> None:
    assert headless("Who is gone leaves a hole.")
    assert headless("What comes too late is dropped.")
    assert not headless("Who may answer?")
    assert not headless("Whether the peer is up.")
    assert not headless("A departed member leaves a hole.")


def test_messages_have_no_headless_or_overlong_sentences() -> None:
    assert [fault for module in modules() for fault in of_messages(module)] == []


def test_every_sentence_of_a_message_is_checked() -> None:
    text = (
        'raise Wrong(f"{name} is late: who comes late waits", do="wait; what is it waiting for?")'
    )
    module = Module(ROOT / "a.py", "a", f'"""Who is it."""\n\n{text}\n')
    assert list(messages(module)) == [
        "… is late: who comes late waits",
        "wait; what is it waiting for?",
    ]
    assert list(of_messages(module)) == ["a.py: who comes late waits"]


def test_code_and_tests_have_no_headless_or_overlong_sentences() -> None:
    read = {module.where: module for module in (*programs(), *modules_of_tests())}
    assert [fault for module in read.values() for fault in found(module)] == []
