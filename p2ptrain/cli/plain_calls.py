"""Run the commands that people and scripts call most often without the parser.

The parser checks types with pydantic, whose import takes 0.1 s of processor time. These commands
have two or three plain arguments, so this module reads them itself. Anything else goes to the
parser, which explains what is wrong: an unknown option, a missing value, or a request for help.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from p2ptrain.suggested_command import HOME_VARIABLE

HOMES = {"id", "status"}
"""The commands with the options --home and --json. `status` also has --why."""


def run_plainly(words: Sequence[str]) -> bool:
    """Run the command in `words` and return True if it is one of these commands, with arguments
    that need no explanation. Otherwise do nothing and return False.

    Raises P2PTrainError: the command fails."""
    command, given = (words[0], list(words[1:])) if words else ("", [])
    as_json = given.count("--json") == 1
    given = [word for word in given if word != "--json"] if as_json else given
    if command == "explain" and len(given) <= 1 and not _is_option(given):
        from p2ptrain.cli.commands.status import explain

        explain(given[0] if given else None, as_json)
        return True
    why = command == "status" and given.count("--why") == 1
    given = [word for word in given if word != "--why"] if why else given
    if command not in HOMES or len(given) not in (0, 2) or (given and given[0] != "--home"):
        return False
    if _is_option(given[1:]):
        return False
    from p2ptrain.cli.commands.status import identity, status

    named = given[1] if given else os.environ.get(HOME_VARIABLE)
    home = Path(named) if named else None
    if command == "id":
        identity(home, as_json)
    else:
        status(home, why, as_json)
    return True


def _is_option(words: Sequence[str]) -> bool:
    return any(word.startswith("-") for word in words)
