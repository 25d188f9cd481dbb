"""Suggested commands name the home: `suggested_command.to_paste` writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import Module, modules

OF_A_HOME = re.compile(
    r"\bp2ptrain (allow|chain|ckpt|export|id|ledger|node|run (amend|publish|show)|status|store"
    r"|verify)\b"
)

ELSEWHERE = {
    "p2ptrain/node/joining/invitation.py": "others paste it, on machines of their own",
    "p2ptrain/node/joining/find_run.py": "the organiser pastes it, where the organiser's home is",
    "p2ptrain/node/joining/trusted_checkpoint.py": "looked up on the host of another node",
    "p2ptrain/node/consensus/pruning.py": "somebody else looks it up, where that node runs",
    "p2ptrain/config/node.py": "the organiser, or somebody trusted, has printed it",
    "p2ptrain/cli/error_codes.py": "explains a code, wherever it was met",
    "p2ptrain/cli/network_codes.py": "the same",
    "p2ptrain/cli/homes.py": "the volunteer pastes it, and has a home there",
    "p2ptrain/data/text_tokens.py": "made of any run, which is not told here",
    "p2ptrain/trainer/formats/huggingface.py": "made of any run, which is not told here",
    "p2ptrain/trainer/tools/generating.py": "a folder of weights does not know whose they were",
    "p2ptrain/trainer/rank/node_client.py": "the node's host has the home, the rank's has none",
    "p2ptrain/export/card.py": "strangers read it beside the weights",
    "p2ptrain/cli/commands/run_amend.py": "help is the same in every home",
    "p2ptrain/cli/commands/run.py": "`run new` makes a file, and no home yet",
    "p2ptrain/cli/commands/data.py": "`data pack` knows of no home",
}
"""Files where commands with a home may be written by hand, and the reason."""


def by_hand(module: Module) -> Iterator[str]:
    """Strings that contain such a command. Docstrings, help and its examples are not messages."""
    exempt: set[ast.AST] = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                exempt.add(node.value)
            case ast.Call(func=ast.Name(id="examples")) | ast.keyword(arg="help" | "epilog"):
                exempt.update(ast.walk(node))
            case ast.Call(func=ast.Attribute(attr="Option" | "Argument" | "Typer")):
                exempt.update(ast.walk(node))
    for node in ast.walk(module.tree):
        match node:
            case ast.Constant(value=str(text)) if node not in exempt and OF_A_HOME.search(text):
                yield text


def test_no_message_contains_a_handwritten_command_with_a_home() -> None:
    found = {module.where: list(by_hand(module)) for module in modules()}
    assert {
        where: texts for where, texts in found.items() if texts and where not in ELSEWHERE
    } == {}


def test_no_exception_outlives_its_reason() -> None:
    assert {module.where for module in modules() if any(by_hand(module))} >= set(ELSEWHERE)


def test_walker_sees_messages_and_skips_docstrings_and_help() -> None:
    text = '"""p2ptrain status"""\nE = examples("p2ptrain status")\nsay(f"p2ptrain store {x}")\n'
    text += 'Option(help="as p2ptrain id prints it")\nsay("p2ptrain run new")\n'
    assert list(by_hand(Module(modules()[0].path, "p2ptrain.x", text))) == ["p2ptrain store "]
