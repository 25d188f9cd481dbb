"""`p2ptrain verify`: replay the run in a home, and report the first difference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.average_check import verify_average
from p2ptrain.cli.homes import HomeOption, check_asked_for, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.rendering import show_error
from p2ptrain.errors import P2PTrainError, StoreError, TryLater, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.chain_reader import ChainVerifier, EntryBroken
    from p2ptrain.archive.home import Home
    from p2ptrain.archive.replay import ChainFacts, Difference, MissingBytes
    from p2ptrain.ledger.chain.values import Certified
    from p2ptrain.run import Run
    from p2ptrain.store import LogCorrupt

EXAMPLES = examples(
    "p2ptrain verify",
    "p2ptrain verify tiny --home /srv/seed --from genesis",
    "p2ptrain verify --from newest --json",
    "p2ptrain verify --average 12 --chunks 4",
)
TOLD_S = 1.0
"""Seconds between two lines of progress."""


def verify(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The run's name, or the beginning of its id; the home must hold that run.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Snapshot to start from: genesis, oldest or newest held here, or an outer step.",
        ),
    ] = "oldest",
    average: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="STEP",
            help="Instead, check the average of this outer step against the contributions.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        int,
        typer.Option(min=1, max=10_000, metavar="K", help="With --average: chunks to check."),
    ] = 1,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the run in this home and check everything.

    Checks certificates and updates, and compares θ (the weights) and m (the outer momentum) with
    every certified snapshot. Names the first difference: its height, its outer step, and its
    signers. Does not use the network or trust other peers. Needs memory for θ and m. Works whether
    or not a node runs in the home.

    With --average, the node that runs in the home fetches K chunks of each contribution, computes
    the same chunks of the update again, and compares them. Contributions are kept for two outer
    steps.
    """
    where = open_home(home, to_write=False)
    held = run_of(where)
    if run is not None:
        check_asked_for(run, held)
    if average is not None:
        return verify_average(where.root, average, chunks, as_json=as_json)
    findings = _audited(where, held, start)
    error = _error_of(where, findings)
    if as_json:
        result_json(asdict(findings) | {"good": findings.difference is None})
    if error is not None:
        show_error(error)
        raise typer.Exit(error.exit_code)
    if not as_json:
        result(_words(findings))


@dataclass(slots=True)
class AuditFindings:
    """The output of `--json` besides `good`. A field is null if the audit did not reach it."""

    run: str
    name: str
    entries: int = 0
    begins_at: str | None = None
    """The checkpoint at which a pruned ledger begins. The audit trusts this checkpoint."""
    height: int | None = None
    head: str | None = None
    step: int | None = None
    """The current outer step."""
    torn: str | None = None
    """The incomplete record after the ledger's last valid one, from a crash or from a node that is
    writing now. The node had not sent it to any peer, so nothing is lost."""
    begun: int | None = None
    reached: int | None = None
    """The outer step up to which the replay got. The replay began at the step `begun`."""
    updates: int = 0
    compared: tuple[int, ...] = ()
    """The outer steps whose certified snapshots equal the replayed states."""
    state: str | None = None
    """blake3 of θ and m at the end of the replay."""
    difference: Difference | None = None
    missing: MissingBytes | None = None


def _audited(where: Home, run: Run, start: str) -> AuditFindings:
    """Audit the run. Raises ConfigError, or StoreError: the disk is damaged."""
    from p2ptrain.archive.chain_reader import ChainVerifier, EntryBroken, ReadOnlyDisk
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.archive.replay import chain_facts
    from p2ptrain.store import LogCorrupt, RecordLog

    findings = AuditFindings(run.id, run.manifest.name)
    try:
        log = RecordLog(where.ledger, disk=ReadOnlyDisk()) if where.ledger.exists() else None
        if log is not None and log.torn_bytes:
            torn = counted(log.torn_bytes, "byte")
            findings.torn = f"{where.ledger.name} ends in {torn} of an incomplete record"
            progress(f"{findings.torn}, which a node is writing or a crash left; this is ignored")
        walk = ChainVerifier(rules_of(run), log or (), where.ledger)
        account = chain_facts(run.manifest, walk.begins, _with_progress(walk))
    except (EntryBroken, LogCorrupt) as exc:
        findings.difference = _of_entry(exc)
        return findings
    state = walk.state
    findings.entries, findings.height, findings.head = walk.good, state.height, state.head
    findings.step = state.step
    if walk.origin is not None:
        findings.begins_at = str(walk.origin.base.checkpoint)
        progress(walk.origin.words)
    entries = counted(walk.good, "entry is", "entries are")
    progress(f"{'all ' * (walk.good > 1)}{entries} valid, up to outer step {state.step}")
    _replay(where, run, account, start, findings)
    return findings


def _with_progress(walk: ChainVerifier) -> Iterator[Certified]:
    report_progress = ThrottledProgress()
    for link in walk.links():
        report_progress(f"{counted(walk.good, 'entry is', 'entries are')} valid")
        yield link.certified


def _of_entry(exc: EntryBroken | LogCorrupt) -> Difference:
    """Return the fault of the ledger itself. If the log cannot be read, the signers are unknown."""
    from p2ptrain.archive.chain_reader import EntryBroken
    from p2ptrain.archive.replay import Difference

    if isinstance(exc, EntryBroken):
        what = f"{exc.what}: {exc.evidence[0]}"
        return Difference("entry", exc.height, exc.step, exc.entry, what, exc.signed_by)
    return Difference("entry", exc.records + 1, None, None, exc.what, ())


def _replay(
    where: Home, run: Run, account: ChainFacts, start: str, findings: AuditFindings
) -> None:
    from p2ptrain.archive.amendments import Amendments
    from p2ptrain.archive.replay import MissingBytes, Replay, choose
    from p2ptrain.store import StoreReader

    store = StoreReader(where.store)
    begin = choose(account, store, start)
    if begin is None:
        newest = account.snapshots[max(account.snapshots)] if account.snapshots else None
        if newest is not None:
            findings.missing = MissingBytes("snapshot", newest.step, newest.digest)
        return
    report_progress = ThrottledProgress()
    progress(f"replaying from the snapshot of outer step {begin.step}")
    replay = Replay(
        run,
        account,
        store,
        begin,
        lambda step: report_progress(f"replayed outer step {step} of {account.end}"),
        Amendments.of(where, run),
    )
    verdict = replay.replay()
    findings.begun, findings.reached = verdict.begun, verdict.reached
    findings.updates, findings.state = verdict.updates, verdict.state
    findings.compared = tuple(named.step for named in verdict.compared)
    findings.difference, findings.missing = verdict.difference, verdict.missing


class ThrottledProgress:
    """Print progress, at most once every `TOLD_S` seconds."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() >= self._told_s + TOLD_S:
            self._told_s = time.monotonic()
            progress(text)


def _error_of(where: Home, findings: AuditFindings) -> P2PTrainError | None:
    if findings.difference is not None:
        return _differs(where, findings.difference)
    if findings.missing is not None:
        return _incomplete(where, findings, findings.missing)
    return None


def _differs(where: Home, difference: Difference) -> StoreError:
    from p2ptrain.names import label

    code, likely, do = _ADVICE[difference.kind]
    place = "" if difference.height is None else f"entry {difference.height}, "
    step = "" if difference.step is None else f"outer step {difference.step}, "
    signers = ", ".join(label(peer) for peer in difference.signed_by) or "unknown peers"
    return StoreError(
        f"{place}{step}{_KINDS[difference.kind]}: {difference.what}",
        code=code,
        evidence=[f"signed by {signers}", *([difference.digest] if difference.digest else [])],
        likely=likely,
        do=do.format(repair=to_paste(where.root, "store check --repair")),
    )


_KINDS = {
    "entry": "the entry or its certificate is invalid",
    "amendment": "the agreed amendment is not the one that the organiser signed",
    "update": "the update in this home is not the certified one",
    "snapshot": "the snapshot in this home is not the certified one",
    "state": "the updates do not lead to the certified snapshot",
}
_CORRUPT = (
    "CKPT-HASH",
    "the disk that holds the store is faulty",
    "{repair}; or start the node, which fetches the bytes again from peers",
)
_ADVICE = {
    "entry": (
        "LEDGER-BROKEN",
        "the file is damaged or was altered, or it belongs to another run",
        "move ledger.log away; the node fetches the ledger again from its peers",
    ),
    "update": _CORRUPT,
    "amendment": (
        "AMEND-DIFFERS",
        "a quorum of the voters certified an amendment that the organiser did not sign",
        "show this to the run's organiser",
    ),
    "snapshot": _CORRUPT,
    "state": (
        "AUDIT-DIFFERS",
        "a majority of the voters broke the run's rules, or this machine computes wrongly",
        "verify on another machine; if it finds the same difference, show it to the run's "
        "organiser",
    ),
}


def _incomplete(where: Home, findings: AuditFindings, missing: MissingBytes) -> TryLater:
    done = (
        "nothing could be replayed"
        if findings.begun is None
        else f"outer steps {findings.begun} to {findings.reached} are correct"
    )
    return TryLater(
        f"{done}; this home does not hold the {missing.kind} of outer step {missing.step}",
        code="AUDIT-PARTIAL",
        evidence=[missing.digest],
        likely="this home keeps only what the run needs, or its node is still fetching it",
        do=f"{to_paste(where.root, 'ckpt fetch')}, or verify in the home of a node with "
        "--keep-snapshots all",
    )


def _words(findings: AuditFindings) -> str:
    entries, updates = counted(findings.entries, "entry", "entries"), findings.updates
    compared = counted(len(findings.compared), "certified snapshot")
    torn = f"; {findings.torn}" if findings.torn else ""
    return (
        f"the run {findings.name!r} is valid: {entries}, {counted(updates, 'update')} "
        f"from outer step {findings.begun} to {findings.reached}, which "
        f"{'leads' if updates == 1 else 'lead'} to {compared}{torn}"
    )
