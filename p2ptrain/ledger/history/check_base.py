"""Check a base from a peer. See `base` for what a base is and what it does not prove."""

from __future__ import annotations

from p2ptrain.errors import RemoteProtocolError
from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.signatures import Verify
from p2ptrain.ledger.chain.verify import check_certified
from p2ptrain.ledger.history.base import Base, Checkpoint


def check_base(rules: Rules, base: Base, named: Checkpoint, verify: Verify) -> None:
    """Check that `base` is the one that `named` identifies, and that it is valid in this run.

    Raises RemoteProtocolError, which states the difference.
    """
    if base.checkpoint != named:
        raise RemoteProtocolError(f"this base has checkpoint {base.checkpoint}, not {named}")
    check_certified(rules, base.state, base.commit, verify)
