"""`p2ptrain invite`: print the string with which volunteers join the run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.role_option import TRAINER, role_from
from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.durations import parse_duration
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.qr_code import qr_lines
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, P2PTrainError, RemoteProtocolError, TryLater
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.net.addresses import Address
    from p2ptrain.run import Run, Ticket, Token

EXAMPLES = examples(
    "p2ptrain invite",
    "p2ptrain invite --uses 3 --expires 7d",
    "p2ptrain invite --as reader --expires 2d",
    "p2ptrain invite --address /ip4/203.0.113.7/tcp/4201 --home ORGANISER",
)


AddressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="ADDR",
        help=(
            "Address to put first; may be repeated. Without /p2p/PEERID at its end, it is an "
            "address of the node in this home."
        ),
    ),
]
QrOption = Annotated[
    bool | None,
    typer.Option(
        "--qr/--no-qr",
        help="Also draw the invitation as a QR code.",
        show_default="draw it on a terminal",
    ),
]
UsesOption = Annotated[
    int | None,
    typer.Option(
        "--uses",
        min=1,
        max=1000,
        metavar="N",
        help="Admit the first N peers that use this invitation, without asking you.",
        show_default="none; 1 with --expires",
    ),
]
ExpiresOption = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="DURATION",
        help="How long the invitation admits peers: 12h, 7d, 2w.",
        show_default="7d with --uses",
    ),
]


InvitedRoleOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="ROLE",
        help=(
            "Admit peers in this role, without asking you: trainer, or reader, which never trains "
            "or votes."
        ),
        show_default="trainer with --uses or --expires",
    ),
]


def invite(
    address: AddressOption = None,
    qr: QrOption = None,
    uses: UsesOption = None,
    expires: ExpiresOption = None,
    as_: InvitedRoleOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an invitation to the run in this home.

    Volunteers take part with `p2ptrain join INVITE`. The invitation contains the run, its
    organiser, and addresses of the node that runs here and of other machines that serve the run.
    It stays valid while one of its addresses leads to a member. It admits peers only with --uses,
    --expires or --as, while the node in this home runs; keep such an invitation secret.
    """
    from p2ptrain.net.invitation import Invitation, decode, encode

    where = open_home(home, to_write=False)
    run = run_of(where)
    given = _given(where, address or ())
    told, warnings = _told(where, given)
    found = decode(told).addresses if told else ()
    wants_ticket = (uses, expires, as_) != (None, None, None)
    ticket = _ticket(where, run, uses, expires, as_ or TRAINER) if wants_ticket else None
    secret = ticket.to_bytes(run.manifest.organiser) if ticket else b""
    invitation = Invitation.of(run.id, run.manifest.organiser, [*given, *found], secret)
    text = encode(invitation)
    addresses = [str(each) for each in invitation.addresses]
    if as_json:
        organiser = run.manifest.organiser
        facts = {"run": run.id, "organiser": organiser, "addresses": addresses}
        token = ticket.signed.token if ticket else None
        admits = _admits(token) if token else {}
        result_json({"invitation": text, **facts, **admits, "warnings": list(warnings)})
        return
    result(text)
    if sys.stderr.isatty() if qr is None else qr:
        for line in qr_lines(text.upper()):
            progress(line)
    _explain(where, run, addresses, warnings, ticket)


def _given(where: Home, texts: Sequence[str]) -> list[Address]:
    """Return the addresses that the user gave. Raises ConfigError: one is malformed, or lacks a
    peer and there is no key here."""
    from p2ptrain.identity import load_or_create
    from p2ptrain.net.addresses import parse, parse_with_peer

    found = [parse(text) for text in texts]
    if where.identity.exists():
        me = load_or_create(where.identity).peer
        return [each if each.peer else each.of_peer(me) for each in found]
    return [parse_with_peer(text)[0] for text in texts]


def _told(where: Home, given: Sequence[Address]) -> tuple[str, Sequence[str]]:
    """Return the invitation that the node in this home makes, with its warnings.

    If no node answers, return "" and the reason, as long as the user gave addresses.

    Raises:
        TryLater: no node answers, and without a node there are no addresses.
        RemoteProtocolError: the node's answer is malformed."""
    try:
        reply = send_command(where.root, "invitation")
    except P2PTrainError as error:
        if given:
            return "", [f"it only has the addresses that you gave: {error.what}"]
        if error.code != "NO-NODE":
            raise
        raise TryLater(
            "no node is running in this home, so there are no addresses for an invitation",
            code="NO-NODE",
            do=(
                f"start a node ({to_paste(where.root, 'node --seed')}) and repeat the command, or "
                "give --address with an address at which a node of the run can be dialled"
            ),
        ) from error
    text, warnings = reply.get("invitation"), reply.get("warnings")
    if not isinstance(text, str) or not isinstance(warnings, list):
        raise RemoteProtocolError("the node in this home gave a malformed invitation")
    return text, [printable(str(each)) for each in warnings]


def _admits(token: Token) -> dict[str, object]:
    return {"uses": token.uses, "expires_unix": token.expires_unix, "role": token.role}


def _ticket(where: Home, run: Run, uses: int | None, expires: str | None, role: str) -> Ticket:
    """Sign a token in the organiser's home.

    Raises NotAuthorised, ConfigError: this is not the organiser's home, the run is open, or several
        organisers must sign each list."""
    from p2ptrain.run import Ticket

    organiser, seconds = organiser_of(where, run), parse_duration(expires or "7d")
    given = role_from(role)
    if run.manifest.organisers.signatures_min > 1:
        raise ConfigError(
            f"in run {run.manifest.name!r} several organisers must sign each list, so an "
            "invitation cannot admit anybody",
            do="leave out --uses, --expires and --as, and approve the peers that ask to join",
        )
    if run.manifest.admission == "open":
        raise ConfigError(
            f"run {run.manifest.name!r} is open to everyone, so invitations need not admit anybody",
            do="leave out --uses, --expires and --as",
        )
    end = int(time.time()) + seconds
    seed = os.urandom(32)
    return Ticket.issue(organiser, run.id, seed, uses=uses or 1, expires_unix=end, role=given)


def _explain(
    where: Home,
    run: Run,
    addresses: Sequence[str],
    warnings: Sequence[str],
    ticket: Ticket | None,
) -> None:
    from p2ptrain.names import label

    organiser = label(run.manifest.organiser)
    progress(f"an invitation to run {run.manifest.name!r} of {organiser}, with these addresses:")
    for each in addresses:
        progress(f"  {each}")
    for each in warnings:
        progress(f"warning: {each}")
    if ticket:
        token = ticket.signed.token
        peers = "peer that uses it" if token.uses == 1 else f"{token.uses} peers that use it"
        role = f" as a {token.role}" if token.role != TRAINER else ""
        progress(f"the node in this home admits the first {peers}{role}, until {token.end}")
        progress("keep this invitation secret: send it only to people whom you want to admit")
    elif run.manifest.admission != "open":
        progress(f"see who asks to join with: {to_paste(where.root, 'peers pending')}")
