"""The style rules that a program can check, each with a list of its exceptions."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.architecture.sources import (
    PACKAGE,
    ROOT,
    Module,
    definitions,
    is_harness,
    modules_of_tests,
    programs,
    tracked_texts,
)

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

BANNED_WORDS = {"utils", "util", "helper", "helpers", "common", "manager", "worker", "epoch", "job"}
"""Words that are too vague for a name, or that have a different meaning in this project."""

NAMES_ALLOWED = {
    "manager": "libp2p's name for the object that runs its tasks",
    "_common_start": "the length of the common prefix of two byte strings",
}

BROAD_EXCEPT_ALLOWED = (
    "p2ptrain/net/",
    "p2ptrain/cli/main.py",
    "p2ptrain/doctor/runner.py",
    "p2ptrain/data/tokenizer_file.py",
    "p2ptrain/portmap/upnp_process.py",
)
"""Places where `except Exception` is allowed. Third-party libraries can raise any exception, the
command line must report every exception, and a check that crashes must not end the other checks.
"""

SLEEPS_ALLOWED = {"tests/node/connecting/test_opening.py", "tests/node/test_slow_answers.py"}
"""Tests that may sleep. They use trio's MockClock, so hours pass instantly."""

HOSTS = re.compile(
    r"www\.apache\.org|www\.w3\.org|github\.com|([\w-]+\.)?example(\.org)?|203\.0\.113\.\d+|"
    r"127\.0\.0\.1|localhost|ntfy\.sh"
)
"""The hosts of the licence, of SVG's namespace and of the project, hosts reserved for examples,
this machine, and the service that users name with `p2ptrain notify add ntfy:TOPIC`.
"""


def words_of(name: str) -> set[str]:
    """Return the words of an identifier in snake case or camel case, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_defined(module: Module) -> Iterator[str]:
    yield from module.name.split(".")
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_no_name_uses_a_banned_word() -> None:
    found = [
        f"{module.where}: {name}"
        for module in {*programs(), *modules_of_tests()}
        for name in names_defined(module)
        if words_of(name) & BANNED_WORDS and name not in NAMES_ALLOWED
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PeerManager", {"peer", "manager"}),
        ("_job_queue", {"job", "queue"}),
        ("TLSSocket", {"tls", "socket"}),
    ],
)
def test_identifiers_are_split_into_words(name: str, words: set[str]) -> None:
    assert words_of(name) == words


def test_modules_are_short() -> None:
    long = [
        f"{module.where}: {module.text.count(chr(10))} lines"
        for module in programs()
        if module.text.count("\n") > MODULE_LINES_MAX
    ]
    assert long == []


def test_functions_are_short() -> None:
    long = {
        f"{module.where}:{node.name}": node.end_lineno - node.lineno + 1
        for module in programs()
        for node in definitions(module)
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == {}


def test_every_module_has_a_docstring() -> None:
    silent = [module.where for module in programs() if not ast.get_docstring(module.tree)]
    assert silent == []


def test_every_package_has_an_init_file() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_native_sources_do_not_shadow_cython() -> None:
    assert not (ROOT / "cython" / "__init__.py").exists()
    assert list((ROOT / "cython").rglob("*.py")) == []


def test_every_native_source_is_listed_in_the_build() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    named = {
        path
        for extension in settings["ext-modules"]
        for path in (*extension["sources"], *extension["depends"])
    }
    faces = {f"cython/{path.name}" for path in (ROOT / "cython").glob("*.pyx")}
    plain = {f"cython/{path.name}" for path in (ROOT / "cython").glob("*_impl.c")}
    headers = {f"cython/{path.name}" for path in (ROOT / "cython").glob("*.h")}
    assert named == faces | plain | headers


def broad(node: ast.AST) -> bool:
    """Return whether an except clause catches every exception and does not raise it again."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    kinds = ast.unparse(node.type) if node.type else "BaseException"
    raises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
    return bool(re.search(r"\b(Base)?Exception\b", kinds)) and not raises


def test_broad_except_occurs_only_where_allowed() -> None:
    found = [
        f"{module.where}:{node.lineno}"
        for module in programs()
        if not module.where.startswith(BROAD_EXCEPT_ALLOWED)
        for node in module.nodes
        if broad(node) and isinstance(node, ast.ExceptHandler)
    ]
    assert found == []


def calls(module: Module, wanted: Callable[[str], bool]) -> list[str]:
    return [
        f"{module.where}:{node.lineno}"
        for node in module.nodes
        if isinstance(node, ast.Call) and wanted(ast.unparse(node.func))
    ]


def test_no_test_sleeps() -> None:
    """Tests wait for a condition with `settled` or `eventually`. Only harnesses, which poll
    processes, and the tests in SLEEPS_ALLOWED may sleep.
    """
    sleeps = re.compile(r"((time|trio|anyio|asyncio)\.)?sleep(_until)?")
    found = [
        call
        for module in modules_of_tests()
        if module.where not in SLEEPS_ALLOWED and not is_harness(module)
        for call in calls(module, lambda name: sleeps.fullmatch(name) is not None)
    ]
    assert found == []


def test_no_test_is_skipped() -> None:
    marks = re.compile(r"pytest\.(mark\.(skip|skipif|xfail)|skip|xfail|importorskip)")
    found = [
        f"{module.where}:{node.lineno}"
        for module in modules_of_tests()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and marks.fullmatch(ast.unparse(node))
    ]
    assert found == []


def test_no_file_contains_a_to_do_mark() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    assert [name for name, text in tracked_texts() if mark.search(text)] == []


def test_no_file_contains_a_path_on_a_developers_machine() -> None:
    folder = re.compile(r"(?<![\w.~}$*-])/(?:root|work|mnt|(?:home|Users)/\w+)/[\w.]+")
    found = {
        f"{name}: {match.group()}"
        for name, text in tracked_texts()
        for match in folder.finditer(text)
        if name != "tests/architecture/test_style.py"
    }
    assert found <= {"tests/cli/test_errors.py: /root/x"}


def test_no_file_names_a_host_that_is_not_allowed() -> None:
    url = re.compile(r"https?://([\w.-]+)")
    found = {
        f"{name}: {host}"
        for name, text in tracked_texts()
        for host in url.findall(text)
        if not HOSTS.fullmatch(host)
    }
    assert found == set()
