"""`p2ptrain ledger contributors`: who has contributed how much, by the ledger in this home."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.cli.history import contributions_in, step_before
from p2ptrain.cli.homes import HomeOption, open_home, run_of
from p2ptrain.cli.output import JsonOption, examples, progress, result, result_json
from p2ptrain.errors import counted

if TYPE_CHECKING:
    from p2ptrain.archive.contributions import Contribution, Contributions
    from p2ptrain.ids import PeerId

EXAMPLES = examples(
    "p2ptrain ledger contributors",
    "p2ptrain ledger contributors --last 24h",
    "p2ptrain ledger contributors --home /srv/seed --json",
)


def contributors(
    home: HomeOption = None,
    last: Annotated[
        str | None,
        typer.Option(
            "--last", metavar="TIME", help="Count only the outer steps of this time: 24h or 7d."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which peers have contributed, most tokens first.

    The command counts the certified tokens and outer steps in this home's ledger, after checking
    every vote. Anybody with the ledger gets the same numbers. The command works whether or not a
    node runs in the home.
    """
    from p2ptrain.cli.durations import parse_duration

    where = open_home(home, to_write=False)
    run = run_of(where)
    seconds = None if last is None else parse_duration(last)
    after = 0 if seconds is None else step_before(where, run, seconds, time.time())
    found = contributions_in(where, run, after=after)
    if as_json:
        result_json({"run": run.id, **_plain(found)})
        return
    if not found.by_peer:
        progress("no outer step was committed in this time" if last else "nothing is committed yet")
        return
    progress(
        f"run {run.manifest.name!r}, outer steps {found.begins + 1} to {found.end}: "
        f"{found.tokens:,} tokens in {counted(found.steps, 'committed step')}"
    )
    for rank, (peer, theirs) in enumerate(found.ranked(), start=1):
        result(_line(rank, peer, theirs, found.share(peer)))


def _line(rank: int, peer: PeerId, theirs: Contribution, share: float) -> str:
    from p2ptrain.names import label

    steps = counted(theirs.steps, "step")
    span = f"  steps {theirs.first_step} to {theirs.last_step}" if theirs.steps else ""
    return (
        f"{rank:>3}  {label(peer):<28}{theirs.tokens:>16,} tokens  {share:>6.1%}  {steps:>10}{span}"
    )


def _plain(found: Contributions) -> dict[str, object]:
    from p2ptrain.names import peer_name

    return {
        "height": found.height,
        "head": found.head,
        "after_step": found.begins,
        "step": found.end,
        "tokens": found.tokens,
        "steps": found.steps,
        "contributors": [
            {
                "peer": peer,
                "peer_name": peer_name(peer),
                "tokens": theirs.tokens,
                "share": round(found.share(peer), 6),
                "steps": theirs.steps,
                "first_step": theirs.first_step or None,
                "last_step": theirs.last_step or None,
            }
            for peer, theirs in found.ranked()
        ],
    }
