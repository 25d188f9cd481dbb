"""Read the history of a home for commands: its ledger, and the series that its node records.

The ledger says what was agreed, and has no clock. The series says when, and what peers reported.
Commands work with the ledger alone and say what is missing, because a home of an earlier version
has no series.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.errors import ConfigError
from p2ptrain.suggested_command import to_paste

if TYPE_CHECKING:
    from p2ptrain.archive.contributions import Contributions
    from p2ptrain.archive.home import Home
    from p2ptrain.observe.series import SeriesReader, StepRow
    from p2ptrain.run import Run

FILE = "series.db"


def series_path(home: Path) -> Path:
    return home / FILE


@contextmanager
def opened_series(home: Path) -> Iterator[SeriesReader]:
    """Open the series of the node in `home`.

    Raises StoreError (SERIES): there is none, or this version cannot read it.
    """
    from p2ptrain.observe.series import SeriesReader, SeriesUnavailable

    try:
        reader = SeriesReader(series_path(home))
    except SeriesUnavailable as error:
        raise SeriesUnavailable(
            error.what,
            likely="no node has run here yet, or only one of an earlier version",
            do=f"run the node, and wait for its next outer step: {to_paste(home, 'status')}",
        ) from error
    with reader:
        yield reader


def steps_if_any(home: Path, run: str) -> tuple[list[StepRow], str]:
    """Return the rows of the outer steps of `run`, oldest first. If there is no series of this run,
    return no rows, and the reason in words."""
    from p2ptrain.observe.series import SeriesUnavailable

    try:
        with opened_series(home) as reader:
            if reader.run() != run:
                return [], f"{FILE} is of a different run"
            return reader.steps(), ""
    except SeriesUnavailable as error:
        return [], error.what


def contributions_in(
    where: Home, run: Run, *, after: int = 0, until: int | None = None
) -> Contributions:
    """Verify the ledger in a home, and count the contributions in outer steps after step `after`.
    With `until`, stop at the entry of that height.

    Raises StoreError: the ledger is damaged.
    """
    from p2ptrain.archive.chain_reader import ChainVerifier, records_in
    from p2ptrain.archive.contributions import contributions
    from p2ptrain.archive.ledger_on_disk import rules_of

    walk = ChainVerifier(rules_of(run), records_in(where.ledger), where.ledger)
    links = ((link.before, link.after, link.certified.entry) for link in walk.links())
    return contributions(walk.begins, links, after=after, until=until)


def step_before(where: Home, run: Run, seconds: float, now: float) -> int:
    """Return the newest outer step that ended more than `seconds` before `now`, in Unix seconds; 0
    if all known steps are newer.

    Raises ConfigError: there is no series, which alone knows the times.
    """
    rows, why = steps_if_any(where.root, run.id)
    if not rows:
        raise ConfigError(
            "this home does not know when its outer steps ended",
            code="SERIES",
            evidence=[why or "the series is empty"],
            likely="the home is of an earlier version, or its node has not run since",
            do="leave out --last; the whole run needs the ledger only",
        )
    old = (row.step for row in rows if row.time is not None and row.time < now - seconds)
    return max(old, default=0)
