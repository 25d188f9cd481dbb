"""Copy outer steps to wandb or aim, in the local form of each: nothing is sent to a server.

Both packages are optional and large. Each writes into the folder that the user names; `wandb sync`
uploads what is there, if the user wants that. A run that goes on after a restart is found by the
name that the package has given to it.
"""

from __future__ import annotations

import json
import os
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


class LoggedRun:
    """A target that hands the scalars of each outer step to a `RunLogger`.

    Neither package can say when a step is on the disk. So the mark is one flush behind: after a
    crash, the steps of the last flushes are written once more."""

    def __init__(
        self, mark: Path, scalars: Mapping[str, str], open_run: Callable[[str | None], RunLogger]
    ) -> None:
        self._mark, self._scalars = mark, scalars
        known: dict[str, Any] = json.loads(mark.read_bytes()) if mark.exists() else {}
        self._newest = self._flushed = int(known.get("newest", -1))
        self._run = open_run(known.get("name"))

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
        self._note(self._flushed)
        self._flushed = self._newest

    def close(self) -> None:
        self._run.close()
        self._note(self._newest)

    def _note(self, newest: int) -> None:
        temporary = self._mark.with_name(self._mark.name + ".new")
        temporary.write_text(json.dumps({"newest": newest, "name": self._run.name}))
        os.replace(temporary, self._mark)


def package(name: str) -> Any:
    """Return an optional package. Raises MachineUnfit: it is not installed."""
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


class WandbRun:
    """A run of wandb in offline mode. wandb ignores a step that the run has already."""

    def __init__(self, wandb: Any, folder: Path, name: str | None) -> None:
        self._run = wandb.init(
            project=PROJECT,
            id=name,
            dir=str(folder),
            mode="offline",
            resume="allow" if name else None,
            save_code=False,
        )
        self.name = str(self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class AimRun:
    """A run in aim's repository in a folder. aim replaces the value of a step that it has."""

    def __init__(self, aim: Any, folder: Path, name: str | None) -> None:
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
