"""Copy outer steps to wandb or aim, in the local form of each: nothing is sent to a server.

Both packages are optional and large. Each writes into the folder that the user names; `wandb sync`
uploads what is there, if the user wants that. A run that goes on after a restart is found by the
name that the package has given to it.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from p2ptrain.errors import MachineUnfit
from p2ptrain.extras import install
from p2ptrain.observe.series import PeerStepRow, StepRow

PROJECT = "p2ptrain"


class RunLogger(Protocol):
    """A run of another program, to which outer steps are added in order. To write the same step
    twice has no effect. `name` finds the run again."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


OpenRun = Callable[[str | None, bool], RunLogger]
"""Opens the run with this name, or a new one. The second argument is whether its last use ended
with `close`, so that all of its outer steps are on the disk."""


class LoggedRun:
    """A target that hands the scalars of each outer step to a `RunLogger`.

    Neither package can say when a step is on the disk: wandb lost five of forty steps when the
    command was killed. So the mark says whether the last use ended well. If it did not, all steps
    are written once more."""

    def __init__(self, mark: Path, scalars: Mapping[str, str], open_run: OpenRun) -> None:
        self._mark, self._scalars = mark, scalars
        known: dict[str, Any] = json.loads(mark.read_bytes()) if mark.exists() else {}
        whole = known.get("closed") is True
        self._newest = int(known.get("newest", -1)) if whole else -1
        self._run = open_run(known.get("name"), whole)
        self._note(closed=False)

    @property
    def newest(self) -> int:
        return self._newest

    def write(self, step: StepRow, peers: Sequence[PeerStepRow]) -> None:
        found = {tag: getattr(step, column) for tag, column in self._scalars.items()}
        values = {tag: value for tag, value in found.items() if value is not None}
        if step.time is not None:
            values["run/time"] = step.time
        self._run.log(step.step, values)
        self._newest = step.step

    def flush(self) -> None:
        """Do nothing: only the end of a run makes its steps durable."""

    def close(self) -> None:
        self._run.close()
        self._note(closed=True)

    def _note(self, *, closed: bool) -> None:
        value = {"newest": self._newest, "name": self._run.name, "closed": closed}
        temporary = self._mark.with_name(self._mark.name + ".new")
        temporary.write_text(json.dumps(value))
        os.replace(temporary, self._mark)


SILENT = {"WANDB_ERROR_REPORTING": "false"}
"""Variables that keep the packages from reporting errors to their makers."""


def package(name: str) -> Any:
    """Return an optional package. Raises MachineUnfit: it is not installed."""
    os.environ.update(SILENT)
    try:
        return import_module(name)
    except ImportError as exc:
        raise missing(name) from exc


def missing(name: str) -> MachineUnfit:
    """Return the error for an optional package that is not installed."""
    return MachineUnfit(
        f"the package {name} is not installed",
        code="TRACK-PACKAGE",
        do=f"install it ({install(name)}), or use --to jsonl",
    )


WANDB_SETTINGS = {
    "console": "off",
    "silent": True,
    "host": "",
    "disable_git": True,
    "disable_code": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""wandb would also record the name and the hardware of this machine, the command with its paths,
the installed packages, and the terminal's output. `wandb sync` would publish all of that."""


class WandbRun:
    """A run of wandb in offline mode. Each start of the command makes a folder of its own, all with
    the id of one run: `wandb sync` puts them together. After a crash they are not whole. Then they
    are removed, and a new run begins, because a step would be uploaded twice otherwise."""

    def __init__(self, wandb: Any, folder: Path, name: str | None, whole: bool) -> None:
        if name is not None and not whole:
            _remove_folders(folder, name)
            name = None
        try:
            settings = wandb.Settings(**WANDB_SETTINGS)
        except (TypeError, ValueError) as exc:
            raise MachineUnfit(
                "this version of the package wandb is not supported",
                code="TRACK-PACKAGE",
                likely="it is too old, or much newer than p2ptrain",
                do=f"install another one ({install('wandb==0.31.0')}), or use --to jsonl",
            ) from exc
        self._run = wandb.init(
            project=PROJECT,
            id=name,
            dir=str(folder),
            mode="offline",
            resume="allow" if name else None,
            save_code=False,
            settings=settings,
        )
        self.name = str(self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _remove_folders(folder: Path, name: str) -> None:
    """Remove the folders that wandb has made for the run `name`."""
    for each in (folder / "wandb").glob(f"offline-run-*-{glob.escape(name)}"):
        shutil.rmtree(each, ignore_errors=True)


class AimRun:
    """A run in aim's repository in a folder. aim replaces the value of a step that it has."""

    def __init__(self, aim: Any, folder: Path, name: str | None, whole: bool) -> None:
        self._run = aim.Run(
            run_hash=name,
            repo=str(folder),
            experiment=PROJECT,
            system_tracking_interval=None,
            capture_terminal_logs=False,
        )
        self.name = str(self._run.hash)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._run.track(value, name=tag, step=step)

    def close(self) -> None:
        self._run.close()
