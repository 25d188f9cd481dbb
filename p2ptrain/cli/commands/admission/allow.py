"""`p2ptrain allow`: the old names of `p2ptrain peers approve`, `revoke` and `ls`.

The commands still work, since scripts use them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.control_client import notify, send_command
from p2ptrain.cli.homes import HomeOption, open_home, organiser_of, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import NotAuthorised, P2PTrainError
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.ids import PeerId
    from p2ptrain.run import Role, Run

app = typer.Typer(
    help="Old names of `p2ptrain peers approve`, `peers revoke` and `peers ls`.",
    epilog=examples("p2ptrain allow list", "p2ptrain allow add 12D3KooW… --home ORGANISER"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

PeerArgument = Annotated[
    str,
    typer.Argument(
        metavar="PEER",
        help="Name, peer id, or a unique part of the peer id, of a peer that asks or is listed.",
    ),
]
AnywayOption = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help=(
            "Sign the list even if a peer may have a newer one, or if too few voters would be left."
        ),
    ),
]


@app.command(epilog=examples("p2ptrain allow add 12D3KooW… --home ORGANISER"))
def add(
    peer: PeerArgument,
    anyway: AnywayOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a peer on the allowlist, so that it may take part."""
    from p2ptrain.cli.commands.admission.peers import asking_or_listed
    from p2ptrain.identity import is_peer_id
    from p2ptrain.ids import PeerId

    where, whole = open_home(home), peer.rpartition("/p2p/")[2]
    # The node need not be asked for the meaning of a whole id.
    chosen = PeerId(whole) if is_peer_id(whole) else asking_or_listed(where, peer)
    change(where, chosen, role="trainer", anyway=anyway, as_json=as_json)


@app.command(epilog=examples("p2ptrain allow remove 12D3KooW… --home ORGANISER"))
def remove(
    peer: PeerArgument,
    anyway: AnywayOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a peer off the allowlist.

    The peer stays a member until the next roster, the list of members that the voters agree on.
    """
    from p2ptrain.cli.commands.admission.peers import listed_peer

    where = open_home(home)
    change(where, listed_peer(where, peer), role=None, anyway=anyway, as_json=as_json)


@app.command("list", epilog=examples("p2ptrain allow list", "p2ptrain allow list --json"))
def list_(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the allowlist, and the peers that ask to join.

    Only running nodes know about requests: the nodes that received them, and the organiser's node.
    """
    from p2ptrain.names import peer_name
    from p2ptrain.run import load_allowlist

    where = open_home(home, to_write=False)
    run = run_of(where)
    signed = load_allowlist(where.allowlist, run)
    peers = sorted(signed.allowlist.roles) if signed else []
    sequence = signed.allowlist.sequence if signed else 0
    told, silence = _pending(where.root)
    asking = [peer for peer in told if peer not in peers]
    if as_json:
        unknown = silence.code if silence else None
        pending = {"pending": asking, "pending_unknown": unknown}
        result_json({"sequence": sequence, "peers": peers} | pending)
        return
    progress(f"allowlist number {sequence}; peers on it: {len(peers)}")
    for peer in peers:
        result(f"{peer}  {peer_name(peer)}")
    for other in asking:
        progress(f"{peer_name(other)} asks to join: {_what_to_do(where, run, other)}")
    if silence:
        progress(f"pending requests to join are not known: {silence.what}")


def _what_to_do(where: Home, run: Run, other: PeerId) -> str:
    """Return what to do about a join request: a command in the organiser's home, or advice."""
    from p2ptrain.names import label

    try:
        organiser_of(where, run)
    except NotAuthorised:
        return (
            f"only the organiser, {label(run.manifest.organiser)}, can admit it; send the "
            f"organiser this peer id: {other}"
        )
    return to_paste(where.root, f"peers approve {other}")


def _pending(root: Path) -> tuple[list[PeerId], P2PTrainError | None]:
    """Return the peers that ask to join, according to the node in this home; or no peers, and the
    reason why they are unknown.
    """
    from p2ptrain.identity import is_peer_id
    from p2ptrain.ids import PeerId

    try:
        told = send_command(root, "pending").get("pending", [])
    except P2PTrainError as error:
        return [], error
    asking = [PeerId(peer) for peer in told if is_peer_id(peer)] if isinstance(told, list) else []
    return asking, None


def change(where: Home, peer: PeerId, *, role: Role | None, anyway: bool, as_json: bool) -> None:
    """Give `peer` this role on the allowlist, or remove it if `role` is None. Sign the new list,
    and notify the node that runs in this home. If several organisers must sign, make a proposal.

    Raises P2PTrainError: this is not the organiser's home, or the list is not safe to sign."""
    from p2ptrain.archive.home import signing_allowlist
    from p2ptrain.cli.commands.admission.allow_checks import changed_list, voters_heard
    from p2ptrain.cli.commands.admission.proposals import missing_signatures, offer
    from p2ptrain.names import label
    from p2ptrain.run import SignedAllowlist, save_allowlist

    run = run_of(where)
    organiser = organiser_of(where, run)
    voters = voters_heard(where, run, anyway=anyway)
    with signing_allowlist(where):
        after, changed = changed_list(where, run, peer, voters, role=role)
        signed = SignedAllowlist.publish(organiser, after)
        if changed and not missing_signatures(run, signed.signed):
            save_allowlist(where.allowlist, signed)
    facts: dict[str, object] = {}
    if changed and missing_signatures(run, signed.signed):
        facts = offer(where, run, signed.signed, quiet=as_json).facts
        progress(f"the proposal says about {label(peer)}: {role or 'revoked'}")
    else:
        if changed:
            notify_list(where)
        done = "is off" if role is None else "is on"
        as_reader = " as a reader" if role == "reader" else ""
        progress(f"{label(peer)} {done} the allowlist{as_reader} (now number {after.sequence})")
    progress(f"its whole id is {peer}")
    if run.manifest.admission == "open":
        progress(
            f"note: run {run.manifest.name!r} is open to everyone; its allowlist has no effect"
        )
    if as_json:
        readers = {"readers": list(after.readers)} if after.readers else {}
        listed = {"sequence": after.sequence, "changed": changed, "peers": list(after.peers)}
        result_json(listed | readers | facts)


def notify_list(where: Home) -> None:
    """Tell the node in this home that there is a newer list."""
    notify(
        where.root,
        "reload-allowlist",
        without_node="no node is running in this home; the list takes effect when one starts",
    )
