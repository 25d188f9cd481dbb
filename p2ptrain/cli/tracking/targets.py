"""The places to which `p2ptrain track` copies outer steps: JSON lines, TensorBoard's files, and the
local files of wandb and aim (`run_loggers`).

A target remembers the newest outer step that it has, so a restart continues after it, and no step
is written twice. After a crash, a torn line of JSON is cut off, and TensorBoard is told to discard
what follows the remembered step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from p2ptrain.cli.tracking.run_loggers import AimRun, LoggedRun, WandbRun, missing, package
from p2ptrain.errors import ConfigError
from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name
from p2ptrain.observe.series import PeerStepRow, StepRow

MARK = "p2ptrain-track.json"
TAIL_BYTES = 1 << 20
"""Bytes at the end of a file in which its last line begins. A line of 256 peers takes 130 kB."""

SCHEMA = 1

SCALARS = {
    "loss/train": "loss",
    "loss/held_out": "held_out",
    "optimizer/learning_rate": "learning_rate",
    "optimizer/gradient_norm": "gradient_norm",
    "run/tokens": "tokens",
    "run/tokens_total": "tokens_total",
    "run/members": "members",
    "run/participants": "participants",
    "node/exchange_ms": "exchange_ms",
    "node/bytes_up": "bytes_up",
    "node/bytes_down": "bytes_down",
}
"""Names of the columns in TensorBoard, wandb and aim. Rows of peers are left out: a run has any
number of them."""


class Target(Protocol):
    """A place for outer steps, which come in order."""

    @property
    def newest(self) -> int:
        """The newest outer step that the target has; -1 if it has none."""

    def write(self, step: StepRow, peers: Sequence[PeerStepRow]) -> None:
        """Write one outer step."""

    def flush(self) -> None:
        """Make everything that was written durable."""

    def close(self) -> None:
        """End the use of the target."""


class JsonLines:
    """The file steps.jsonl: one object for each outer step, with the rows of its peers."""

    def __init__(self, folder: Path) -> None:
        path = folder / "steps.jsonl"
        self._newest, size = _last_step(path)
        self._file: IO[bytes] = path.open("ab")
        self._file.truncate(size)

    @property
    def newest(self) -> int:
        return self._newest

    def write(self, step: StepRow, peers: Sequence[PeerStepRow]) -> None:
        rows = [{**asdict(row), "peer_name": peer_name(PeerId(row.peer))} for row in peers]
        line = json.dumps({"schema": SCHEMA, **asdict(step), "peers": rows}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._newest = step.step

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _last_step(path: Path) -> tuple[int, int]:
    """Return the outer step in the last whole line of a file, -1 if it has none, and the size up to
    the end of that line: what follows was left unfinished by a crash.

    Raises ConfigError: the line is not an outer step.
    """
    if not path.exists():
        return -1, 0
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
        file.seek(start)
        tail = file.read()
    whole = tail[: tail.rfind(b"\n") + 1]
    if not tail:
        return -1, 0
    try:
        return int(json.loads(whole.splitlines()[-1])["step"]), start + len(whole)
    except (ValueError, KeyError, TypeError, IndexError) as exc:
        raise ConfigError(
            f"the last line of {path} is not an outer step",
            likely="another program wrote into the file, or its first line is unfinished",
            do="name an empty folder",
        ) from exc


class TensorBoard:
    """Event files for TensorBoard. The package tensorboardX writes them."""

    def __init__(self, folder: Path, make_writer: Callable[[Path, int | None], Any]) -> None:
        self._mark = folder / "tensorboard.json"
        self._newest = int(_marked(self._mark).get("newest", -1))
        purge = self._newest + 1 if self._newest >= 0 else None
        self._writer = make_writer(folder, purge)

    @property
    def newest(self) -> int:
        return self._newest

    def write(self, step: StepRow, peers: Sequence[PeerStepRow]) -> None:
        for tag, column in SCALARS.items():
            if (value := getattr(step, column)) is not None:
                self._writer.add_scalar(tag, value, step.step, walltime=step.time)
        self._newest = step.step

    def flush(self) -> None:
        self._writer.flush()
        _write_mark(self._mark, {"newest": self._newest})

    def close(self) -> None:
        self._writer.close()


def tensorboard_writer(folder: Path, purge_step: int | None) -> Any:
    """Return tensorboardX's writer. Raises MachineUnfit: the package is not installed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as exc:
        raise missing("tensorboardX") from exc
    return SummaryWriter(logdir=str(folder), purge_step=purge_step)


KINDS: Mapping[str, Callable[[Path], Target]] = {
    "jsonl": JsonLines,
    "tensorboard": lambda folder: TensorBoard(folder, tensorboard_writer),
    "wandb": lambda folder: to_wandb(folder, package("wandb")),
    "aim": lambda folder: to_aim(folder, package("aim")),
}


def to_wandb(folder: Path, wandb: Any) -> LoggedRun:
    """Return the target that writes with `wandb`, the package of that name."""
    return LoggedRun(folder / "wandb.json", SCALARS, partial(WandbRun, wandb, folder))


def to_aim(folder: Path, aim: Any) -> LoggedRun:
    """Return the target that writes with `aim`, the package of that name."""
    return LoggedRun(folder / "aim.json", SCALARS, partial(AimRun, aim, folder))


def open_target(kind: str, folder: Path, run: str) -> Target:
    """Open the target of this kind in `folder`, which is made if there is none.

    Raises:
        ConfigError: there is no such kind, or the folder has another run or cannot be written.
        MachineUnfit: a package is missing.
    """
    if kind not in KINDS:
        raise ConfigError(f"there is no target {kind[:40]!r}", do=f"use {' or '.join(KINDS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = _marked(folder / MARK)
        if known.get("run", run) != run:
            raise ConfigError(
                f"{folder} has the history of another run", do="name a folder for this run"
            )
        _write_mark(folder / MARK, {"run": run})
        return KINDS[kind](folder)
    except OSError as exc:
        raise ConfigError(
            f"{folder} cannot be written: {exc.strerror}", do="name another folder"
        ) from exc


def _marked(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_mark(file: Path, value: Mapping[str, object]) -> None:
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, file)
