"""Commands that messages suggest: they must also work in the shell of the user who pastes them.

A command without `--home` applies to the usual home of the user's own account. A node that runs as
a service has another home. For such a node, a command without `--home` would fail, or would change
the wrong run if the usual home organises another run.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

HOME_VARIABLE = "P2PTRAIN_HOME"


def usual_home() -> Path:
    """Return the default home of this user's node."""
    import platformdirs

    return Path(platformdirs.user_data_dir("p2ptrain", appauthor=False))


def to_paste(home: Path, words: str) -> str:
    """Return the command `p2ptrain WORDS` for the node in `home`. `words` are already quoted for a
    shell."""
    other = home != usual_home() or os.environ.get(HOME_VARIABLE, str(home)) != str(home)
    return f"p2ptrain {words}" + (f" --home {shlex.quote(str(home))}" if other else "")
