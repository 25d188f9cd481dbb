"""Commands that messages give people to paste: what works here must work where it is pasted.

Whoever pastes a command without `--home` means the usual home of their own account. A service's
home is another one; there such a command fails or, where the usual home organises another run,
does the right thing to the wrong run.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

HOME_VARIABLE = "P2PTRAIN_HOME"


def usual_home() -> Path:
    """Where this user's node lives unless somebody says otherwise."""
    import platformdirs

    return Path(platformdirs.user_data_dir("p2ptrain", appauthor=False))


def to_paste(home: Path, words: str) -> str:
    """The command `p2ptrain WORDS` for the node in `home`; `words` are as a shell wants them."""
    other = home != usual_home() or os.environ.get(HOME_VARIABLE, str(home)) != str(home)
    return f"p2ptrain {words}" + (f" --home {shlex.quote(str(home))}" if other else "")
