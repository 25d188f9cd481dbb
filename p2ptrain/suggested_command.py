"""Commands in messages, in a form that works when the user pastes them into a shell.

A command without `--home` uses the default home of the user's account (the folder with a node's
files). A node that runs as a service has a different home. For such a node, a command without
`--home` would fail, or would change a different run if the user organises one in the default home.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

HOME_VARIABLE = "P2PTRAIN_HOME"


def usual_home() -> Path:
    """Return the default home of this user's node: a folder that need not exist yet."""
    import platformdirs

    return Path(platformdirs.user_data_dir("p2ptrain", appauthor=False))


def to_paste(home: Path, words: str) -> str:
    """Return the command `p2ptrain WORDS` for the node in `home`. `words` must already be quoted
    for a shell."""
    other = home != usual_home() or os.environ.get(HOME_VARIABLE, str(home)) != str(home)
    return f"p2ptrain {words}" + (f" --home {shlex.quote(str(home))}" if other else "")
