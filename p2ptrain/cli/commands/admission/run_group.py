"""The group of commands `p2ptrain run`."""

from __future__ import annotations

from p2ptrain.cli.commands import run, run_hand_over
from p2ptrain.cli.commands.control import run_stop

app = run.app
app.command("hand-over", epilog=run_hand_over.EXAMPLES)(run_hand_over.hand_over)
app.command("stop", epilog=run_stop.EXAMPLES)(run_stop.stop)
