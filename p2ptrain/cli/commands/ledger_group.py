"""The commands of `p2ptrain ledger`, which several modules define."""

from __future__ import annotations

from p2ptrain.cli.commands import ledger, ledger_evidence, ledger_trained
from p2ptrain.cli.commands.watching import contributors

app = ledger.app
app.command("evidence", epilog=ledger_evidence.EXAMPLES)(ledger_evidence.evidence)
app.command("trained", epilog=ledger_trained.EXAMPLES)(ledger_trained.trained)
app.command("contributors", epilog=contributors.EXAMPLES)(contributors.contributors)
