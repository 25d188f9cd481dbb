"""`python -m tests.ledger.transcript_player [--rewrite] FILE…`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ledger.transcript_player.blocks import rewritten
from tests.ledger.transcript_player.fault import StoryFault


def main(arguments: Sequence[str]) -> int:
    """Play transcripts, and print them with their current trace or write them back."""
    write = "--rewrite" in arguments
    for name in (each for each in arguments if each != "--rewrite"):
        path = Path(name)
        try:
            text = rewritten(path.read_text())
        except StoryFault as exc:
            sys.stderr.write(f"{path}: {exc}\n")
            return 1
        if write:
            path.write_text(text)
        else:
            sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
