"""A run file with the amendments since its publication, for `run check`.

It includes all amendments that members have agreed on according to the ledger in a home, even those
that take effect at a later outer step.
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
    """The amended file. `agreed` lists the amendments, oldest first. Each has a number, from_step,
    digest, words, and whether this home holds the amendment."""

    run: RunFile
    agreed: tuple[dict[str, Any], ...] = ()


def as_amended(written: RunFile, home: Path | None) -> AmendedFile:
    """Return `written` with the amendments that `home` has for this run. If `home` has no run of
    that name, return it unchanged.

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
