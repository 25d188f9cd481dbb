"""A run file with the amendments since its publication, for `run check`.

All amendments count that are agreed according to the ledger in a home, also those that apply from a
later outer step on.
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
    """The amended file. `agreed` lists the amendments, oldest first: number, from_step, digest,
    words, and whether the amendment is held here."""

    run: RunFile
    agreed: tuple[dict[str, Any], ...] = ()


def as_amended(written: RunFile, home: Path | None) -> AmendedFile:
    """Return `written` with the amendments of the run of that name in `home`; unchanged if there is
    no such run.

    Raises ConfigError, RemoteProtocolError: a file in the home is unreadable or invalid.
    """
    path = home_path(home)
    if not (path / "run" / "manifest.signed").exists():
        return AmendedFile(written)
    where = open_home(path, to_write=False)
    run = run_of(where)
    if run.manifest.name != written.run.name:
        progress(
            f"the home {path} holds another run, {run.manifest.name!r}: its amendments are ignored"
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
