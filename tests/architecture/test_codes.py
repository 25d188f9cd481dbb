"""Every error code that the code uses is explained, and every explained code is used."""

from __future__ import annotations

import ast
import re

import pytest

from p2ptrain.cli.error_codes import CODES
from tests.architecture.sources import Module, modules

CODE = re.compile(r"[A-Z][A-Z0-9]*(-[A-Z0-9]+)*")
COMPOUND = re.compile(
    r"(ADDR|ALLOWLIST|AUDIT|AUTH|BF16|CKPT|DISK|FETCH|GPU|ID|MEM|NET|NODE|PEER|PROOF|RUN|SHM|STORE|TRAINER)"
    r"(-[A-Z0-9]+)+"
)

PROMISED = """
ADDR-SYNTAX ADDR-NO-PEER-ID ADDR-LOOPBACK ADDR-PRIVATE NET-DNS NET-REFUSED NET-TIMEOUT NET-SILENT
NET-NOT-LIBP2P NET-RESET NET-WRONG-ID NET-OUTBOUND-ONLY RUN-MISMATCH RUN-VERSION RUN-ENDED
AUTH-PENDING AUTH-DENIED AUTH-REVOKED ID-IN-USE GPU-NONE GPU-DRIVER GPU-BUSY MEM-GPU MEM-OOM
MEM-HOST DISK-LOW FD-LIMIT SHM-SMALL CKPT-HASH CKPT-NO-SOURCE SYNC-SLOW SYNC-DROPPED ISOLATED
NAN BUG
""".split()
"""Codes of the first version. Users rely on them."""


def codes_in(module: Module, *, and_compared: bool = True) -> set[str]:
    """Return the error codes in a module: strings where a code is expected, and strings that start
    like a code.

    Without `and_compared`, leave out codes that are only compared with something.
    """
    compared = set() if and_compared else _compared(module.tree)
    found: set[str] = set()
    for node in module.nodes:
        if id(node) in compared:
            continue
        match node:
            case ast.keyword(arg="code", value=ast.Constant(value=str(text))):
                found.add(text)
            case ast.Assign(targets=[ast.Name(id="default_code")], value=ast.Constant(value=text)):
                found.add(str(text))
            case ast.Call(func=ast.Name(id="Caution"), args=[ast.Constant(value=str(text)), *_]):
                found.add(text)
            case ast.Constant(value=str(text)) if COMPOUND.fullmatch(text):
                found.add(text)
    return found - {""}


def _compared(tree: ast.Module) -> set[int]:
    """Return the `id()` of each node inside a comparison or the pattern of a match statement."""
    readings = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.MatchValue)]
    return {id(part) for reading in readings for part in ast.walk(reading)}


def test_every_code_in_the_sources_is_explained() -> None:
    used = {code: module.where for module in modules() for code in codes_in(module)}
    assert {code: where for code, where in used.items() if code not in CODES} == {}


def test_every_explained_code_is_used() -> None:
    told = {
        code
        for module in modules()
        if module.name != "p2ptrain.cli.error_codes"
        for code in codes_in(module, and_compared=False)
    }
    assert set(CODES) - told == set()


def test_every_promised_code_is_explained() -> None:
    assert set(PROMISED) <= set(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_code_is_well_formed_and_explained_in_a_sentence(code: str) -> None:
    text = CODES[code]
    assert CODE.fullmatch(code)
    assert text[0].isupper() or text.startswith("p2ptrain")
    assert text.endswith(".")
    assert 20 <= len(text) <= 300
    assert "  " not in text


def test_codes_are_found_in_every_form() -> None:
    text = 'class E:\n    default_code = "A"\nraise E(code="B-C")\nTABLE = {"NET-X": "D-E"}\n'
    text += 'Caution("F", "words")\n'
    module = Module(modules()[0].path, "p2ptrain.x", text)
    assert codes_in(module) == {"A", "B-C", "F", "NET-X"}


def test_code_that_is_only_compared_does_not_count_as_used() -> None:
    text = 'if e.code == "NET-A" or e.code in ("NET-B",):\n    raise E(code="NET-C")\n'
    text += 'match e.code:\n    case "NET-D":\n        pass\n'
    module = Module(modules()[0].path, "p2ptrain.x", text)
    assert codes_in(module) == {"NET-A", "NET-B", "NET-C", "NET-D"}
    assert codes_in(module, and_compared=False) == {"NET-C"}
