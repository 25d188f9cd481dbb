"""The roles that an organiser or a delegate can give to a peer.

    trainer    may do everything that the run allows: train, become a member, and vote
    reader     may connect, fetch chunks and read the ledger; it never becomes a member

Allowlists, tokens, grants and invitations use these names.
"""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["trainer", "reader"]
TRAINER: Role = "trainer"
READER: Role = "reader"
ROLES: tuple[Role, ...] = get_args(Role)
