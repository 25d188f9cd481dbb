"""`p2ptrain ledger evidence`: show and check proofs that a voter lied, without a network.

Evidence is signed by the accused peer. So anyone with the run's manifest can check it, in a home on
this machine or in a file from another person.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.commands.ledger import ManifestOption, chain_of, run_at
from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.cli.rendering import printable
from p2ptrain.errors import ConfigError, RemoteProtocolError, StoreError

if TYPE_CHECKING:
    from p2ptrain.archive.chain_reader import CheckedEntry
    from p2ptrain.ledger.messages.evidence import Evidence
    from p2ptrain.run import Run


EXAMPLES = examples(
    "p2ptrain ledger evidence",
    "p2ptrain ledger evidence --file evidence.log --manifest manifest.signed",
)


@dataclass(frozen=True, slots=True)
class EvidenceFinding:
    """The result for one piece of evidence. `fault` says why the evidence does not prove anything;
    it is empty if the evidence is a proof. `evicted_at` is the height of the roster that dropped
    the peer, or None.
    """

    evidence: Evidence
    fault: str
    evicted_at: int | None

    def plain(self) -> dict[str, object]:
        return {
            **self.evidence.plain(),
            "words": self.evidence.words,
            "good": not self.fault,
            "fault": self.fault,
            "evicted_at": self.evicted_at,
        }


def evidence(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="An evidence.log from another node; by default, that of this home.",
        ),
    ] = None,
    manifest: ManifestOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show proofs that a peer signed contradictory statements.

    Checks both signatures, and says at which height the peer was evicted, if this home's ledger
    shows it. Works whether or not a node runs in the home.
    """
    run = run_of(open_home(home, to_write=False)) if manifest is None else run_at(manifest)
    links = chain_of(run, open_home(home, to_write=False).ledger).links if manifest is None else []
    source = open_home(home, to_write=False).evidence if file is None else file
    if file is not None and not file.is_file():
        raise ConfigError(
            f"there is no file {file}",
            do="give the path of an evidence.log, copied from the home of a member that has one",
        )
    findings = [_finding(run, links, each) for each in _evidence_in(source)]
    if as_json:
        result_json({"run": run.id, "evidence": [each.plain() for each in findings]})
        return
    if not findings:
        progress(f"run {run.manifest.name!r}: there is no evidence against any peer")
    for each in findings:
        result(printable(_words(each)))


def _evidence_in(source: Path) -> list[Evidence]:
    from p2ptrain.archive.chain_reader import records_in
    from p2ptrain.ledger.messages.evidence import decode_evidence

    found = []
    for number, record in enumerate(records_in(source), 1):
        try:
            found.append(decode_evidence(record))
        except RemoteProtocolError as exc:
            raise StoreError(
                f"piece {number} of the evidence in {source} cannot be read",
                code="LEDGER-BROKEN",
                evidence=[exc.what],
                likely="the file is damaged, or another program wrote into it",
                do=(
                    "ask the sender for a new copy; in a home, move the file away: other members "
                    "hold the same evidence"
                ),
            ) from exc
    return found


def _finding(run: Run, links: list[CheckedEntry], evidence: Evidence) -> EvidenceFinding:
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.identity import verify
    from p2ptrain.ledger.messages.evidence import check_evidence

    lines = {rules_of(run).run, *(link.after.line for link in links)}
    fault = check_evidence(lines, evidence, verify)
    left_at = [
        link.after.height
        for link in links
        if link.after.height >= evidence.height
        and link.before.is_member(evidence.peer)
        and not link.after.is_member(evidence.peer)
    ]
    return EvidenceFinding(evidence, fault, left_at[0] if left_at and not fault else None)


def _words(finding: EvidenceFinding) -> str:
    """Return a line that says what the peer signed, and at which height it was evicted."""
    if finding.fault:
        return f"{finding.evidence.words}; NOT proved: {finding.fault}"
    left = finding.evicted_at
    after = (
        "not evicted, as far as this ledger shows" if left is None else f"evicted at height {left}"
    )
    return f"{finding.evidence.words}; both signatures are valid; {after}"
