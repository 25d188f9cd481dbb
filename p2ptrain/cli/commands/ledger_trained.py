"""`p2ptrain ledger trained`: compare the ledger with the journals of nodes, block by block.

A node does not send its journal to other peers. So the user names the journal files to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, result, result_json
from p2ptrain.errors import ConfigError, P2PTrainError, counted
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.observe.trained import TrainingAudit

EXAMPLES = examples(
    "p2ptrain ledger trained", "p2ptrain ledger trained ann/journal.jsonl bob/journal.jsonl --json"
)
FAULTS_SHOWN_MAX = 10


def trained(
    journals: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="JOURNAL",
            help="journal.jsonl files from the homes of nodes.",
            show_default="this home's own",
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that each committed block was trained on once.

    The member that held the block's lease must have trained on it. Compares this home's ledger with
    the journals of nodes, which record the blocks that their trainers have trained on.
    """
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.ledger_on_disk import rules_of
    from p2ptrain.observe.trained import check_trained

    where = open_home(home, to_write=False)
    walk = ChainVerifier(rules_of(run_of(where)), records_in(where.ledger), where.ledger)
    links = ((link.before, link.certified.entry) for link in walk.links())
    records = _records(journals or [where.journal])
    found = check_trained(walk.begins, links, records)
    if not as_json:
        return _print_audit(where, found)
    result_json(_plain(found))
    if not found.good:
        raise typer.Exit(P2PTrainError.exit_code)


def _records(journals: Sequence[Path]) -> Iterator[Mapping[str, object]]:
    from p2ptrain.observe.journal import read_journal

    for journal in journals:
        if not journal.is_file():
            raise ConfigError(f"{journal} is not a file", do="give the journal.jsonl of a home")
        yield from read_journal(journal)


def _plain(found: TrainingAudit) -> dict[str, object]:
    return {
        "good": found.good,
        "checked": found.checked,
        "unseen": found.unseen,
        "faults": [fault.words for fault in found.faults],
    }


def _print_audit(where: Home, found: TrainingAudit) -> None:
    if not found.good:
        export = to_paste(where.root, "ledger export FILE")
        raise P2PTrainError(
            f"{counted(len(found.faults), 'block was', 'blocks were')} not trained on exactly "
            "once, by the credited member",
            code="TRAINED-OTHERWISE",
            evidence=[fault.words for fault in found.faults[:FAULTS_SHOWN_MAX]],
            likely="the journal is from a different run or was altered, or p2ptrain has a bug",
            do=f"report it, with the journals and this ledger: {export}",
        )
    result(
        f"{counted(found.checked, 'committed block was', 'committed blocks were')} trained on "
        "exactly once, each by the member that held its lease"
    )
    if found.unseen:
        unseen = counted(found.unseen, "other committed block")
        result(f"the given journals do not mention {unseen}")
