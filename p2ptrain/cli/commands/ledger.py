"""`p2ptrain ledger`: show, check and export the run's ledger, with or without a running node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json, result_or_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, counted

if TYPE_CHECKING:
    from p2ptrain.archive.chain_reader import CheckedChain, CheckedEntry
    from p2ptrain.ids import PeerId
    from p2ptrain.ledger.chain.findings import Verdict
    from p2ptrain.ledger.chain.state import LedgerState
    from p2ptrain.ledger.chain.values import Roster
    from p2ptrain.run import Run

app = typer.Typer(
    help="Show and check what the members of the run have agreed on.",
    epilog=examples("p2ptrain ledger show --last 50", "p2ptrain ledger verify"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

LastOption = Annotated[int, typer.Option("--last", min=1, help="Number of entries to show.")]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="An exported ledger; by default, the ledger of this home.",
        show_default=False,
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--manifest", metavar="FILE", help="The run's manifest; by default, that of this home."
    ),
]


@app.command(epilog=examples("p2ptrain ledger show", "p2ptrain ledger show --last 50 --json"))
def show(home: HomeOption = None, last: LastOption = 20, as_json: JsonOption = False) -> None:
    """Show the newest entries in words.

    Works whether or not a node runs in the home.
    """
    where = open_home(home, to_write=False)
    run = run_of(where)
    chain = chain_of(run, where.ledger)
    if as_json:
        result_json(
            {**_summary(run, chain), "entries": [_plain(link) for link in chain.links[-last:]]}
        )
        return
    _print_summary(run, chain)
    for link in chain.links[-last:]:
        result(printable(_line(link)))


@app.command(
    epilog=examples(
        "p2ptrain ledger verify", "p2ptrain ledger verify ledger.jsonl --manifest manifest.signed"
    )
)
def verify(
    file: FileArgument = None,
    manifest: ManifestOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every entry and its votes.

    Starts from the run's manifest and names the first invalid entry. Does not use the network or
    trust other peers.
    """
    run = run_of(open_home(home, to_write=False)) if manifest is None else run_at(manifest)
    chain = (
        chain_of(run, open_home(home, to_write=False).ledger)
        if file is None
        else chain_of(run, file, exported=True)
    )
    folder = open_home(home, to_write=False).run if manifest is None else manifest.parent
    amended = agreed_amendments(run, chain, folder)
    if as_json:
        result_json({**_summary(run, chain), "good": True, "amendments": amended})
        return
    _print_summary(run, chain)
    for each in amended:
        result(f"amendment {each['number']}: {each['words']}")
    first = "" if chain.origin is None else f" from height {chain.links[0].after.height} on"
    count = len(chain.links)
    entries, are = counted(count, "entry", "entries"), "is" if count == 1 else "are"
    result(f"{'all ' * (count > 1)}{entries}{first} {are} valid")
    if chain.origin is not None and file is not None:
        result(
            f"this file begins at checkpoint {chain.origin.base.checkpoint} and does not show "
            "earlier entries: ask a person whom you trust for the run's entry at that height, and "
            "compare the two digests"
        )


@app.command(epilog=examples("p2ptrain ledger export ledger.jsonl"))
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the ledger to a file that others can check."""
    from p2ptrain.archive.chain_log import chain_records

    where = open_home(home, to_write=False)
    run = run_of(where)
    chain = chain_of(run, where.ledger)
    links = chain.links if chain.origin is None else chain.links[1:]
    with file.open("wb") as out:
        for record in chain_records(chain.origin, (link.certified for link in links)):
            out.write(record + b"\n")
    wrote = f"wrote {counted(len(chain.links), 'entry', 'entries')} to {file}"
    progress(f"{wrote}; anyone can verify them with {where.manifest}")
    if as_json:
        result_json({**_summary(run, chain), "file": str(file)})


@app.command(epilog=examples("p2ptrain ledger prune --keep-entries 1000"))
def prune(
    keep_entries: Annotated[
        int,
        typer.Option(
            "--keep-entries", metavar="N", min=16, help="Minimum number of entries to keep."
        ),
    ],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old ledger entries of a stopped node.

    Only entries before a certified snapshot are deleted. Afterwards this home cannot show other
    peers how the run began, so make sure that another peer keeps all entries.
    """
    from p2ptrain.archive.home import sole_use
    from p2ptrain.node.consensus.pruning import prune_home

    where = open_home(home)
    run = run_of(where)
    with sole_use(where):
        origin = prune_home(where, run, keep_entries)
    begins_at = None if origin is None else str(origin.base.checkpoint)
    words = f"the ledger now begins at checkpoint {begins_at}"
    if begins_at is None:
        words = "nothing was pruned: this home has no certified snapshot that is old enough"
    result_or_json(words, {"begins_at": begins_at}, as_json=as_json)


def chain_of(run: Run, file: Path, *, exported: bool = False) -> CheckedChain:
    """Return the chain in a node's log or in an exported file, after verifying every entry. Raises
    StoreError.
    """
    from p2ptrain.archive.chain_reader import checked, lines_in, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of

    return checked(rules_of(run), lines_in(file) if exported else records_in(file), file)


def agreed_amendments(run: Run, chain: CheckedChain, folder: Path) -> list[dict[str, object]]:
    """Return the amendments that the chain agreed on, oldest first: number, first outer step,
    digest, a description, and whether `folder` holds the signed amendment.

    Raises RemoteProtocolError (AMEND-DIFFERS): a signed amendment differs from the chain's.
    """
    from p2ptrain.archive.amendments import Amendments

    if not chain.links:
        return []
    state = chain.links[-1].after
    here = Amendments(run, folder / "amendments.signed")
    here.nearest(state.terms, state.step)
    agreed: list[dict[str, object]] = []
    for terms in state.terms:
        found = here.get(terms.digest)
        missing = (
            f"from outer step {terms.step} on; this home does not hold the amendment {terms.digest}"
        )
        words = missing if found is None else found.amendment.words
        named = {"number": terms.number, "from_step": terms.step, "digest": terms.digest}
        agreed.append({**named, "held": found is not None, "words": words})
    return agreed


def run_at(manifest: Path) -> Run:
    from p2ptrain.run import load_run

    run = load_run(manifest)
    if run is None:
        raise ConfigError(
            f"there is no manifest at {manifest}",
            code="RUN-NONE",
            do="give the path of run/manifest.signed; every member has it in its home",
        )
    return run


def _print_summary(run: Run, chain: CheckedChain) -> None:
    from p2ptrain.ledger.queries import branch_words
    from p2ptrain.names import named

    if not chain.links:
        progress(f"run {run.manifest.name!r}: the members have not agreed on anything yet")
        return
    state = chain.links[-1].after
    progress(
        f"run {run.manifest.name!r}: {counted(state.height, 'entry', 'entries')}, "
        f"outer step {state.step}, {state.tokens:,} tokens, "
        f"{counted(len(state.voters), 'voter')}, {counted(len(state.learners), 'learner')}"
    )
    if chain.origin is not None:
        progress(chain.origin.words)
    if words := branch_words(state):
        progress(named(words))
    if chain.checkpoint is not None:
        progress(f"newest checkpoint: {chain.checkpoint}")


def _summary(run: Run, chain: CheckedChain) -> dict[str, object]:
    state = chain.links[-1].after if chain.links else None
    origin, newest = chain.origin, chain.checkpoint
    trusted = None if origin is None or origin.trusted is None else str(origin.trusted)
    return {
        "run": run.id,
        "height": state.height if state else 0,
        "begins_at": None if origin is None else str(origin.base.checkpoint),
        "trusted": trusted,
        "newest_checkpoint": None if newest is None else str(newest),
        "head": state.head if state else run.id,
        "line": state.line if state else run.id,
        "step": state.step if state else 0,
        "tokens": state.tokens if state else 0,
        "voters": list(state.voters if state else run.manifest.founders),
        "learners": list(state.learners if state else ()),
    }


# ── one entry ────────────────────────────────────────────────────────────────────────────────────


def _line(link: CheckedEntry) -> str:
    """Return a line such as "7  commit  step 3: update 1f2e3d4c, 4,096 tokens from brave-otter"."""
    return f"{link.after.height:>5}  {_kind(link):<6}  step {link.before.step}: {_words(link)}"


def _kind(link: CheckedEntry) -> str:
    return type(link.certified.entry.value).__name__.lower()


def _words(link: CheckedEntry) -> str:
    from p2ptrain.ledger.chain.findings import Verdict
    from p2ptrain.ledger.chain.values import Branch, Commit, Heal, Roster

    value = link.certified.entry.value
    if isinstance(value, Commit):
        roster = link.before.roster
        peers = roster.peers if roster else ()
        text = f"update {value.update[:8]}, {_tokens(link):,} tokens from {_names(peers)}"
        if value.snapshot is not None:
            text += f"; snapshot of step {value.snapshot.step}"
        return text
    if isinstance(value, Roster):
        return _roster_words(link.before, value)
    if isinstance(value, Branch):
        gone = [voter for voter in link.before.voters if voter not in value.voters]
        branch = "branches" if len(value.voters) == 1 else "branch"
        are = "is" if len(gone) == 1 else "are"
        return f"{_names(value.voters)} {branch} off without a quorum; {_names(gone)} {are} missing"
    if isinstance(value, Heal):
        return (
            f"the members leave the branch for the chain with entry {value.entry[:8]} at "
            f"height {value.height}, which outranks it"
        )
    if isinstance(value, Verdict):
        return _verdict_words(link.after, value)
    return "no attempt succeeded"


def _verdict_words(after: LedgerState, verdict: Verdict) -> str:
    out = [peer for peer in verdict.peers if peer in after.excluded]
    back = [peer for peer in verdict.peers if peer not in after.excluded]
    changes = [
        f"{_names(each)} {what}"
        for each, what in ((out, "excluded from averages"), (back, "no longer excluded"))
        if each
    ]
    return f"{'; '.join(changes)} ({len(verdict.findings)} findings of auditors)"


def _roster_words(before: LedgerState, roster: Roster) -> str:
    joined = [peer for peer in roster.members if not before.is_member(peer)]
    left = [peer for peer in before.members if peer not in roster.members]
    promoted = [peer for peer in roster.voters if peer in before.learners]
    changes = [
        f"{what}: {_names(peers)}"
        for what, peers in (("joined", joined), ("left", left), ("now voting", promoted))
        if peers
    ]
    if roster.participants:
        how = f"averaging by {roster.schedule}: {_names(roster.peers)}"
        changes.insert(0, f"attempt {roster.attempt}, {how}")
    if roster.terms is not None:
        changes.append(f"amendment {roster.terms.number} from outer step {roster.terms.step} on")
    return "; ".join(changes)


def _names(peers: Iterable[PeerId]) -> str:
    from p2ptrain.names import label

    return ", ".join(label(peer) for peer in peers)


def _tokens(link: CheckedEntry) -> int:
    return link.after.tokens - link.before.tokens


def _plain(link: CheckedEntry) -> dict[str, object]:
    """Return the entry as plain values for JSON: its content, its signers, and its effect."""
    entry, certificate = link.certified.entry, link.certified.certificate
    return {
        "height": entry.height,
        "kind": _kind(link),
        "digest": entry.digest,
        "parent": entry.parent,
        "round": certificate.round,
        "signed_by": sorted(certificate.voters),
        "tokens": _tokens(link),
        "value": entry.value.plain(),
    }
