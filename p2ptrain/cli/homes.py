"""Find the home that a command uses (the folder with a node's files), and load what the command
needs from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2ptrain.errors import ConfigError, NotAuthorised, RunMismatch
from p2ptrain.suggested_command import HOME_VARIABLE, to_paste, usual_home

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.identity import Identity
    from p2ptrain.ids import PeerId
    from p2ptrain.run import Run

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar=HOME_VARIABLE,
        metavar="DIR",
        help="Folder of this node's key, run, store and journal.",
        show_default="the user's data folder",
    ),
]


def home_path(given: Path | None) -> Path:
    """Return the given folder, or the user's default home."""
    return usual_home() if given is None else given.expanduser().absolute()


def open_home(given: Path | None, *, to_write: bool = True, to_make: bool = False) -> Home:
    """Open the home. Create it only if `to_make` is set, so that a mistyped name does not create a
    folder. Without `to_write`, the disk may be read-only.

    Raises ConfigError: the path does not exist, is not a folder, or is not writable by this
        process; or another user could write to it.
    """
    from p2ptrain.archive.home import Home

    path = home_path(given)
    if not to_make and not path.exists():
        raise _no_run(path)
    try:
        home = Home(path)
    except OSError as exc:
        if path.exists() and not path.is_dir():
            raise _no_home(path, "it is a file", likely="the path was misspelt") from exc
        raise _no_home(path, exc.strerror or str(exc)) from exc
    if to_write:
        home.refuse_if_unsafe()
    for folder in (home.root, home.run):
        if to_write and not os.access(folder, os.W_OK | os.X_OK):
            raise _no_home(path, "it cannot be written to")
    return home


OTHERS = "the folder belongs to another user, or the disk is mounted read-only"


def _no_home(path: Path, reason: str, likely: str = OTHERS) -> ConfigError:
    return ConfigError(
        f"{path} cannot be the home: {reason}",
        code="HOME",
        likely=likely,
        do="choose another with --home DIR",
    )


def run_of(home: Home) -> Run:
    """Return the run whose documents are in this home.

    Raises ConfigError: there is no run, or its file is damaged.
    """
    from p2ptrain.run import load_run

    run = load_run(home.manifest)
    if run is None:
        raise _no_run(home.root)
    return run


def _no_run(path: Path) -> ConfigError:
    return ConfigError(
        f"there is no run in {path}",
        code="RUN-NONE",
        evidence=[] if path.exists() else ["there is no such folder"],
        do=f"{to_paste(path, 'run publish RUN_FILE')} publishes one; a node fetches its run "
        "when it first connects",
    )


def organiser_of(home: Home, run: Run) -> Identity:
    """Return the identity in this home, which must be an organiser of `run`.

    Raises NotAuthorised: the home has no key, or a different peer's key.
    """
    from p2ptrain.identity import load_or_create
    from p2ptrain.names import label

    # A home that has a run but no key was restored without the key. A new key would only hide that.
    identity = load_or_create(home.identity) if home.identity.exists() else None
    if identity is None or identity.peer not in run.organisers:
        key = "there is no key" if identity is None else f"the key of {label(identity.peer)} is"
        raise NotAuthorised(
            f"only the organiser of run {run.manifest.name!r} can amend it or change its allowlist",
            code="AUTH-ORGANISER",
            evidence=[
                *(f"the organiser is {label(each)}" for each in run.organisers),
                f"{key} in {home.root}",
            ],
            do=(
                "use --home with the folder that the run was published from, or with the home of "
                "a co-organiser"
                if run.manifest.organisers.peers
                else "use --home with the folder that the run was published from"
            ),
        )
    return identity


def check_asked_for(asked: str, run: Run) -> None:
    """Raise RunMismatch unless `asked` is the name of the run in this home, or the beginning of its
    id (at least 8 characters).
    """
    if asked != run.manifest.name and not (len(asked) >= 8 and run.id.startswith(asked)):
        raise RunMismatch(
            f"the run in this home is {run.manifest.name!r}, not {asked[:80]!r}",
            evidence=[f"the id of that run is {run.id}"],
            do="give the name of that run, or use --home with the folder of the other run",
        )


def peer_from(text: str) -> PeerId:
    """Return the peer id in `text`: a bare peer id, or an address that ends in /p2p/PEERID.

    Raises ConfigError: `text` does not contain a peer id.
    """
    from p2ptrain.identity import is_peer_id
    from p2ptrain.ids import PeerId

    peer = PeerId(text.rpartition("/p2p/")[2])
    if not is_peer_id(peer):
        raise ConfigError(
            f"{text!r} is not a peer id",
            code="PEER-ID",
            do="give an id that begins with 12D3KooW; the volunteer prints it with: p2ptrain id",
        )
    return peer
