"""The group of commands `p2ptrain peers`."""

from __future__ import annotations

from p2ptrain.cli.commands.admission import delegate, peers, sign

app = peers.app
app.command("delegate", epilog=delegate.EXAMPLES)(delegate.delegate)
app.command("sign", epilog=sign.EXAMPLES)(sign.sign)
