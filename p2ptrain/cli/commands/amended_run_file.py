"""Add the amendments since a run's publication to its run file, for `run check`.

The ledger in a home shows which amendments the members have agreed on. All of these count, even
those that take effect at a later outer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2ptrain.cli.homes import home_path, open_home, run_of
from p2ptrain.cli.output import progress

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.config.run_file import RunFile
    from p2ptrain.run import Run, RunManifest


@dataclass(frozen=True, slots=True)
class AmendedFile:
    """The amended file. `agreed` lists the amendments, oldest first, as `agreed_amendments` returns
    them.
    """

    run: RunFile
    agreed: tuple[dict[str, Any], ...] = ()


def as_amended(written: RunFile, home: Path | None) -> AmendedFile:
    """Return the run file `written` with the agreed amendments of the run in `home`. If `home` has
    no run of that name, return `written` unchanged.

    Raises ConfigError, RemoteProtocolError: a file in the home is unreadable or invalid.
    """
    path = home_path(home)
    if not (path / "run" / "manifest.signed").exists():
        return AmendedFile(written)
    where = open_home(path, to_write=False)
    run = run_of(where)
    if run.manifest.name != written.run.name:
        progress(
            f"the home {path} holds a different run, {run.manifest.name!r}: "
            "its amendments are ignored"
        )
        return AmendedFile(written)
    return _amended(written, where, run)


def _amended(written: RunFile, where: Home, run: Run) -> AmendedFile:
    from p2ptrain.archive.amendments import Amendments
    from p2ptrain.cli.commands.ledger import agreed_amendments, chain_of

    chain = chain_of(run, where.ledger)
    agreed = agreed_amendments(run, chain, where.run)
    if not agreed:
        return AmendedFile(written)
    last = Amendments.of(where, run).nearest(chain.links[-1].after.terms, run.manifest.outer.steps)
    return AmendedFile(_with(written, last.manifest), tuple(agreed))


def _with(written: RunFile, manifest: RunManifest) -> RunFile:
    """Return the file with the values that amendments can change taken from the manifest."""
    inner, codec, outer = manifest.inner, manifest.codec, manifest.outer
    changed = {
        "inner": written.inner.model_copy(update={"lr": inner.lr, "steps": inner.steps}),
        "codec": written.codec.model_copy(update={"name": codec.name, "block": codec.block}),
        "outer": written.outer.model_copy(update={"lr": outer.lr, "momentum": outer.momentum}),
    }
    return written.model_copy(update=changed)
