"""Turn what a user pasted after `--bootstrap` or `join` into addresses and the run to expect.

Each text is an address or an invitation. Invitations name a run and its organiser. The node then
takes part in that run only, whatever the peers at the addresses serve. This module does not dial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch
from p2ptrain.ids import PeerId, RunId
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.net.invitation import Invitation


@dataclass(frozen=True, slots=True)
class WaysIn:
    """Where to look for peers, and what to look for. A run or organiser of None means that the user
    accepts any. The names of the fields are those of NodeConfig."""

    bootstrap: tuple[str, ...]
    run: RunId | None = None
    organiser: PeerId | None = None
    ticket: bytes = field(default=b"", repr=False)


def ways_in(texts: Iterable[str], run: str | None = None) -> WaysIn:
    """Return the addresses in `texts` in their order, and the run that the user wants: `run`, or
    the run of the invitations in `texts`.

    Raises:
        ConfigError, VersionMismatch: an invitation is broken, or made by another version.
        RunMismatch: an invitation is for another run than `run` or than another invitation.
    """
    wanted, organiser, ticket = None if run is None else RunId(run), None, b""
    addresses: list[str] = []
    for text in texts:
        if not text.strip().lower().startswith("p2ptrain:"):
            addresses.append(text)
            continue
        # Imported only here, because it loads libp2p.
        from p2ptrain.net.invitation import decode

        invitation = decode(text)
        if (wanted or invitation.run) != invitation.run:
            raise _two_runs(str(wanted), invitation.run)
        wanted, organiser = invitation.run, invitation.organiser
        ticket = _checked_ticket(invitation) or ticket
        addresses += map(str, invitation.addresses)
    return WaysIn(tuple(dict.fromkeys(addresses)), wanted, organiser, ticket)


def _checked_ticket(invitation: Invitation) -> bytes:
    from p2ptrain.run import Ticket

    if invitation.ticket:
        try:
            Ticket.from_bytes(invitation.ticket, invitation.run, invitation.organiser)
        except RemoteProtocolError as exc:
            raise ConfigError(
                f"the ticket in this invitation is not valid: {exc.what}",
                code="INVITE-BROKEN",
                likely="somebody altered the invitation",
                do="get the invitation from a source that you trust",
            ) from exc
    return invitation.ticket


def only_invitation(text: str, home: Path) -> str:
    """Return `text`, which the user gave to `join` for the node in `home`.

    Raises ConfigError, VersionMismatch: it is an address, or not a valid invitation."""
    from p2ptrain.net.invitation import decode

    if text.startswith("/"):
        raise ConfigError(
            f"{text[:80]!r} is an address, not an invitation",
            code="INVITE-BROKEN",
            likely="the run's organiser published an address",
            do=f"use the address with: {to_paste(home, 'node --bootstrap ADDRESS')}",
        )
    decode(text)
    return text


def _two_runs(wanted: str, other: str) -> RunMismatch:
    return RunMismatch(
        "the invitation is for a different run than the one that you asked for",
        evidence=[f"you asked for {wanted}", f"the invitation is for {other}"],
        likely="--run or a second invitation belongs to another run",
        do="use only one invitation, without --run",
    )
