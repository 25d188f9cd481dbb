"""Commands that messages suggest name the user's home folder: `suggested_command.to_paste` writes
them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.sources import Module, modules

OF_A_HOME = re.compile(
    r"\bp2ptrain (allow|chain|ckpt|export|id|invite|join|ledger|node|peers|run (amend|publish|show)"
    r"|status|store|verify)\b"
)

ELSEWHERE = {
    "p2ptrain/node/joining/invitation.py": "other people paste it on their own machines",
    "p2ptrain/web/summary.py": "volunteers paste it on their own machines",
    "p2ptrain/doctor/bootstrap.py": "the organiser pastes it on their own machine",
    "p2ptrain/node/joining/await_approval.py": "the organiser pastes it on their own machine",
    "p2ptrain/node/joining/trusted_checkpoint.py": "the user runs it on the host of another node",
    "p2ptrain/node/consensus/pruning.py": "the user runs it on the host of another node",
    "p2ptrain/config/node.py": "the organiser or another trusted person runs it",
    "p2ptrain/cli/error_codes.py": "explains an error code, whichever home it came from",
    "p2ptrain/cli/commands/proving/certificate_file.py": "the folder can be of any run",
    "p2ptrain/cli/commands/proving/proof.py": "the folder of weights can be of any run",
    "p2ptrain/cli/homes.py": "the volunteer pastes it on a host with a home",
    "p2ptrain/data/text_tokens.py": "the file can be of any run",
    "p2ptrain/trainer/formats/huggingface.py": "the file can be of any run",
    "p2ptrain/trainer/tools/generating.py": "the folder of weights can be of any run",
    "p2ptrain/trainer/rank/node_client.py": "the home is on the node's host",
    "p2ptrain/export/card.py": "strangers read the card together with the weights",
    "p2ptrain/cli/commands/admission/grants.py": "an organiser pastes it on another machine",
    "p2ptrain/cli/commands/admission/proposals.py": "another organiser pastes it elsewhere",
    "p2ptrain/cli/commands/run_amend.py": "help is the same in every home",
    "p2ptrain/cli/commands/run.py": "`run new` writes a file; there is no home yet",
    "p2ptrain/cli/command_table.py": "lines of the help",
    "p2ptrain/cli/commands/data.py": "`data pack` does not use a home",
}
"""Files that may contain handwritten commands that depend on a home, with the reason."""


def by_hand(module: Module) -> Iterator[str]:
    """Yield the strings that contain a command that depends on a home. Leave out docstrings, help
    texts and their examples, which are not messages.
    """
    exempt: set[ast.AST] = set()
    for node in module.nodes:
        match node:
            case ast.Expr(value=ast.Constant()):
                exempt.add(node.value)
            case ast.Call(func=ast.Name(id="examples")) | ast.keyword(arg="help" | "epilog"):
                exempt.update(ast.walk(node))
            case ast.Call(func=ast.Attribute(attr="Option" | "Argument" | "Typer")):
                exempt.update(ast.walk(node))
    for node in module.nodes:
        match node:
            case ast.Constant(value=str(text)) if node not in exempt and OF_A_HOME.search(text):
                yield text


def test_no_message_contains_a_handwritten_command_for_a_home() -> None:
    found = {module.where: list(by_hand(module)) for module in modules()}
    assert {
        where: texts for where, texts in found.items() if texts and where not in ELSEWHERE
    } == {}


def test_every_file_listed_as_an_exception_still_needs_it() -> None:
    assert {module.where for module in modules() if any(by_hand(module))} >= set(ELSEWHERE)


def test_commands_are_found_in_messages_but_not_in_docstrings_or_help() -> None:
    text = '"""p2ptrain status"""\nE = examples("p2ptrain status")\nsay(f"p2ptrain store {x}")\n'
    text += 'Option(help="as p2ptrain id prints it")\nsay("p2ptrain run new")\n'
    assert list(by_hand(Module(modules()[0].path, "p2ptrain.x", text))) == ["p2ptrain store "]
