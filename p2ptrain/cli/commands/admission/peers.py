"""`p2ptrain peers`: see who asks to join, and decide who may take part.

Organisers decide, and delegates admit. A running node in the home of the one who decides tells the
other peers, and within seconds the volunteers. Notes are text from strangers: they are shortened,
and characters that control a terminal are replaced.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.admission.allow import AnywayOption, change
from p2ptrain.cli.commands.admission.grants import (
    delegate_in,
    delegations_now,
    grant,
    granted,
    has_delegates,
)
from p2ptrain.cli.commands.admission.pending_requests import PendingRequest, pending_requests
from p2ptrain.cli.commands.admission.role_option import READER, TRAINER, RoleOption, role_from
from p2ptrain.cli.control_client import notify
from p2ptrain.cli.durations import age, parse_duration
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.peer_choice import chosen_peer
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, NotAuthorised, P2PTrainError
from p2ptrain.ids import PeerId
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.run import Denial, Run

ASKING = "peers that ask to join"
LISTED = "peers on the allowlist"

app = typer.Typer(
    help="See who asks to join your run, and decide who may take part.",
    epilog=examples(
        "p2ptrain peers pending",
        "p2ptrain peers approve brave-otter",
        "p2ptrain peers delegate brave-otter",
        'p2ptrain peers deny brave-otter --for 30d --reason "we are enough"',
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

PeerArgument = Annotated[
    str,
    typer.Argument(
        metavar="PEER",
        help="Name (adjective-animal), unique beginning of a peer id, or whole peer id.",
    ),
]


@app.command(epilog=examples("p2ptrain peers pending", "p2ptrain peers pending --json"))
def pending(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the peers that ask to join, the longest waiting first.

    Requests are known to running nodes only: to those that received them, and to the organiser's.
    The device, the kind of address and the note are the word of the peer that asks.
    """
    from p2ptrain.names import label, peer_name
    from p2ptrain.run.stated_facts import in_words

    where = open_home(home, to_write=False)
    run = run_of(where)
    requests = pending_requests(where)
    if as_json:
        rows = [
            {
                "peer": each.peer,
                "name": peer_name(each.peer),
                "note": each.note,
                "age_s": each.age_s,
                "via": each.via,
                "device": each.device,
                "reach": each.reach,
            }
            for each in requests
        ]
        result_json({"run": run.id, "requests": rows})
        return
    for each in requests:
        told = f"  through {label(each.via)}" if each.via else ""
        note = f'  "{each.note}"' if each.note else ""
        who = f"{peer_name(each.peer)}  {each.peer}  {age(each.age_s)}"
        machine = f"  {stated}" if (stated := in_words(each.device, each.reach)) else ""
        result(f"{who}{machine}{told}{note}")
    progress(_what_to_do(where, run, requests))


def _what_to_do(where: Home, run: Run, requests: Sequence[PendingRequest]) -> str:
    from p2ptrain.names import label

    if not requests:
        return "nobody asks to join"
    one = requests[0].peer
    admit = f"admit a peer with: {to_paste(where.root, f'peers approve {one}')}"
    try:
        organiser_of(where, run)
    except NotAuthorised:
        if delegate_in(where, run):
            return admit
        organiser = label(run.manifest.organiser)
        return f"only the organiser, {organiser}, can admit them; send the organiser a peer id"
    return f"{admit}; refuse one with: {to_paste(where.root, f'peers deny {one}')}"


@app.command(
    epilog=examples(
        "p2ptrain peers approve brave-otter",
        "p2ptrain peers approve 12D3KooW… --as reader",
    )
)
def approve(
    peer: PeerArgument,
    as_: RoleOption = TRAINER,
    anyway: AnywayOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a peer on the allowlist, so that it may take part.

    A reader may connect, fetch chunks and read the ledger, but never trains or votes. A delegate of
    the organisers (`p2ptrain peers delegate`) signs a grant instead, which admits the peer too.
    """
    where = open_home(home)
    run, role = run_of(where), role_from(as_)
    try:
        organiser_of(where, run)
    except NotAuthorised:
        found = delegate_in(where, run)
        if found is None:
            raise
        chosen = asking_or_listed(where, peer)
        grant(where, run, *found, chosen, role, as_json=as_json)
        return
    chosen = asking_or_listed(where, peer)
    change(where, chosen, role=role, anyway=anyway, as_json=as_json)
    _withdraw_denial(where, run, chosen)


@app.command(
    epilog=examples(
        "p2ptrain peers deny brave-otter",
        'p2ptrain peers deny 12D3KooW… --for 1w --reason "this run needs GPUs"',
    )
)
def deny(
    peer: PeerArgument,
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long: 12h, 30d, 4w.")
    ] = "30d",
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help="Reason that the volunteer is shown."),
    ] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse a request to join for some time.

    The volunteer's node ends with AUTH-DENIED, the reason and the date. You can still approve the
    peer earlier.
    """
    from p2ptrain.names import label

    where = open_home(home)
    run = run_of(where)
    seconds = parse_duration(for_)
    requests, why = _requests_if_any(where)
    chosen = chosen_peer(peer, [each.peer for each in requests], of=ASKING, why_few=why)
    denial = _denied(where, run, chosen, seconds, reason)
    _notify(where)
    _forbid_grants(where, run, chosen)
    progress(f"{label(chosen)} is denied until {denial.end}; its whole id is {chosen}")
    if as_json:
        result_json({"peer": chosen, "until_unix": denial.until_unix, "reason": denial.reason})


def _denied(where: Home, run: Run, peer: PeerId, seconds: int, reason: str) -> Denial:
    """Sign a denial, store it in the home, and return it.

    Raises NotAuthorised, ConfigError: this is not the organiser's home, the peer is on the list, or
        the reason is too long."""
    from p2ptrain.run import Denial, SignedDenial, load_denials, save_denials
    from p2ptrain.run.denial import REASON_CHARACTERS_MAX

    organiser = organiser_of(where, run)
    if peer in _listed(where, run):
        raise ConfigError(
            "this peer is on the allowlist, so there is no request to deny",
            code="DENY-LISTED",
            do=f"remove it from the list: {to_paste(where.root, f'peers revoke {peer}')}",
        )
    now = int(time.time())
    try:
        denial = Denial(run.id, peer, now, now + seconds, reason)
    except ValueError as exc:
        raise ConfigError(
            f"the denial is not valid: {exc}",
            do=f"write --reason as one line of at most {REASON_CHARACTERS_MAX} characters",
        ) from exc
    kept = [
        each
        for each in load_denials(where.denials, run)
        if each.denial.holds(now) and each.denial.peer != peer
    ]
    save_denials(where.denials, [*kept, SignedDenial.publish(organiser, denial)])
    return denial


def _forbid_grants(where: Home, run: Run, peer: PeerId) -> None:
    """Let the next list revoke a denied `peer`, so that no delegate can admit it."""
    if not has_delegates(where, run):
        return
    if run.manifest.organisers.signatures_min > 1:
        revoke = to_paste(where.root, f"peers revoke {peer}")
        progress(f"delegates can still admit it; to prevent that, run: {revoke}")
        return
    change(where, peer, role=None, anyway=False, as_json=False)


def _withdraw_denial(where: Home, run: Run, peer: PeerId) -> None:
    """Remove a denial of `peer` from the home, so that it does not hold again if the peer is later
    removed from the list."""
    from p2ptrain.run import load_denials, save_denials

    before = load_denials(where.denials, run)
    after = [each for each in before if each.denial.peer != peer]
    if len(after) < len(before):
        save_denials(where.denials, after)
        _notify(where)


def _notify(where: Home) -> None:
    without = "no node is running in this home; the decision takes effect when one starts"
    notify(where.root, "reload-denials", without_node=without)


@app.command(epilog=examples("p2ptrain peers ls", "p2ptrain peers ls --json"))
def ls(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the peers that are admitted, in which role and by whom, and those that are denied."""
    from p2ptrain.names import label, peer_name
    from p2ptrain.run import load_allowlist, load_denials

    where = open_home(home, to_write=False)
    run = run_of(where)
    signed = load_allowlist(where.allowlist, run)
    sequence, listed = signed.allowlist.sequence if signed else 0, _listed(where, run)
    now = time.time()
    held = [each.denial for each in load_denials(where.denials, run) if each.denial.holds(now)]
    denials = [each for each in held if each.peer not in listed]
    roles = signed.allowlist.roles if signed else {}
    revoked = signed.allowlist.revoked if signed else frozenset[PeerId]()
    by_grant = [
        each
        for each in granted(where, run)
        if each.grant.peer not in roles and each.grant.peer not in revoked
    ]
    delegates = sorted(delegations_now(where, run))
    if as_json:
        denied = [
            {"peer": each.peer, "until_unix": each.until_unix, "reason": each.reason}
            for each in denials
        ]
        grants = [
            {"peer": each.grant.peer, "role": each.grant.role, "delegate": each.delegate}
            for each in by_grant
        ]
        result_json(
            {
                "sequence": sequence,
                "peers": listed,
                "readers": [peer for peer in listed if roles[peer] == READER],
                "revoked": sorted(revoked),
                "granted": grants,
                "delegates": delegates,
                "denied": denied,
            }
        )
        return
    for peer in listed:
        reader = "  reader" if roles[peer] == READER else ""
        may_admit = "  delegate" if peer in delegates else ""
        result(f"{peer_name(peer)}  {peer}{_role(run, peer)}{reader}{may_admit}")
    for one in by_grant:
        role = "" if one.grant.role == TRAINER else f" as a {one.grant.role}"
        name = f"{peer_name(one.grant.peer)}  {one.grant.peer}"
        result(f"{name}  admitted{role} by {label(one.delegate)}")
    for each in denials:
        reason = f': "{printable(each.reason)}"' if each.reason else ""
        result(f"{peer_name(each.peer)}  {each.peer}  denied until {each.end}{reason}")
    progress(f"allowlist number {sequence}; peers on it: {len(listed)}")
    if run.manifest.admission == "open":
        progress("this run is open to everyone, so the list has no effect")


def _role(run: Run, peer: PeerId) -> str:
    if peer in run.organisers:
        return "  organiser"
    return "  founder" if peer in run.manifest.founders else ""


@app.command(
    epilog=examples("p2ptrain peers revoke brave-otter", "p2ptrain peers revoke 12D3KooW…")
)
def revoke(
    peer: PeerArgument,
    anyway: AnywayOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a peer off the allowlist. In a run with delegates, they cannot admit it again.

    The peer stays a member until the next roster, the list of members that the voters agree on.
    """
    where = open_home(home)
    change(where, listed_peer(where, peer), role=None, anyway=anyway, as_json=as_json)


def asking_or_listed(where: Home, text: str) -> PeerId:
    """Return the peer that `text` means: any whole peer id, or one of those that ask to join or are
    on the allowlist. Raises ConfigError: none or several fit."""
    requests, why = _requests_if_any(where)
    known = [*(each.peer for each in requests), *_listed(where, run_of(where))]
    return chosen_peer(text, known, of=ASKING, why_few=why)


def listed_peer(where: Home, text: str) -> PeerId:
    """Return the admitted peer that `text` means. Raises ConfigError: none or several fit."""
    run = run_of(where)
    known = [*_listed(where, run), *(each.grant.peer for each in granted(where, run))]
    return chosen_peer(text, known, of=LISTED)


def _listed(where: Home, run: Run) -> list[PeerId]:
    from p2ptrain.run import load_allowlist

    signed = load_allowlist(where.allowlist, run)
    return sorted(signed.allowlist.roles) if signed else []


def _requests_if_any(where: Home) -> tuple[list[PendingRequest], str]:
    """Return the requests that the node in this home knows; if there is no such node, () and the
    reason."""
    try:
        return pending_requests(where), ""
    except P2PTrainError as error:
        return [], error.what
