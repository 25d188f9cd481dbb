"""`python -m p2ptrain.demo`, which `scripts/demo` runs after the set-up."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from p2ptrain.demo.run_file import written
from p2ptrain.demo.show import Show
from p2ptrain.demo.story import DemoFailed, Story
from p2ptrain.demo.verdict import verdict
from p2ptrain.suggested_command import to_paste
from p2ptrain.testing.node_process import CommandFailed

STOP_S = 20.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=(
            "Run a real swarm on this machine: publish, train, kill, join, refuse, finish."
        ),
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the observed facts to this file as JSON"
    )
    parser.add_argument("--keep", action="store_true", help="leave the nodes running at the end")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="folder for the nodes' homes")
    parser.add_argument(
        "--config", type=Path, metavar="TOML", help="a different run file (default: the demo's own)"
    )
    parser.add_argument("--setup-s", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    folder = given.dir or Path(tempfile.mkdtemp(prefix="p2ptrain-demo-"))
    console = Console(highlight=False)
    started_s = time.monotonic()
    show = Show(console)
    story = Story(folder, given.config or written(folder), show)
    failure = ""
    try:
        with show:
            story.play()
    except (DemoFailed, CommandFailed) as exc:
        failure = str(exc)
    except KeyboardInterrupt:
        failure = "interrupted"
    story.facts.setup_s = given.setup_s
    story.facts.run_s = time.monotonic() - started_s
    result = verdict(story.facts)
    show.table(story.facts.nodes, result["claims"])
    if failure:
        result |= {"ok": False, "failure": failure}
        console.print(f"\nthe demo failed: {failure}", style="bold red", markup=False)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    _close(story, console, keep=given.keep, failed=not result["ok"])
    return 0 if result["ok"] else 1


def _close(story: Story, console: Console, *, keep: bool, failed: bool) -> None:
    """Leave the nodes running for the user, or end them. Keep the files after a failure."""
    running = [node for node in story.cast.values() if node.running]
    if keep:
        for node in running:
            console.print(f"{node.name} is still running: {to_paste(node.home, 'status')}")
        pids = " ".join(str(node.process.pid) for node in running if node.process)
        console.print(f"to stop them: kill {pids}")
        return
    for node in running:
        node.stop()
    for node in running:
        node.finish(STOP_S)
    if failed:
        console.print(f"journals and outputs are in {story.folder}")
    else:
        shutil.rmtree(story.folder)


if __name__ == "__main__":
    sys.exit(main())
