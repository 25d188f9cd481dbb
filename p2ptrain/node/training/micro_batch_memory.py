"""How many sequences at once fit, where memory has run out: kept for the next start of this node.

Without that each start would run out of memory again first, which takes minutes on a GPU. It is a
hint: a file that is gone or damaged costs those minutes, and one that was written under other
settings, or for another device, is forgotten. What a user asks for (`--micro-batch`) is better
than a hint, and forgets it too.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import p2ptrain
from p2ptrain.errors import P2PTrainError
from p2ptrain.ids import Digest
from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.store import digest_of

if TYPE_CHECKING:
    from p2ptrain.node.state.context import Parts

FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """What the file says. `settings`: under which it was found; `day`: when, for people."""

    settings: str
    day: str
    halving: Halving


def recall(parts: Parts, config: TrainerConfig) -> TrainerConfig:
    """`config` with what earlier trainers of such settings have found, if any have."""
    path = parts.home.halving
    if not path.exists():
        return config
    try:
        kept = _read(path)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, P2PTrainError) as exc:
        parts.journal.write("halving-ignored", path=path, reason=str(exc))
        return config
    if parts.config.micro_batch:
        _forget(parts, "a number was given")
        return config
    if kept.settings != settings_of(config, parts.config.ranks):
        _forget(parts, "it was found under other settings or by another version")
        return config
    parts.standing.halving = kept
    parts.journal.write("halving-recalled", day=kept.day, **asdict(kept.halving))
    return replace(config, halving=kept.halving)


def keep(parts: Parts, config: TrainerConfig, halving: Halving) -> None:
    """Have it recalled under the settings `config`, unless a user has said where to begin."""
    if parts.config.micro_batch:
        return
    path, settings = parts.home.halving, settings_of(config, parts.config.ranks)
    kept = Kept(settings, date.today().isoformat(), halving)
    parts.standing.halving = kept
    try:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(kept), indent=1))
        os.replace(beside, path)
    except OSError as exc:
        parts.journal.write("halving-not-kept", path=path, reason=str(exc))
    else:
        parts.journal.write("halving-kept", path=path, **asdict(halving))


def in_words(parts: Parts, hello: Hello) -> str:
    """On what ranks that say `hello` train; a halving that does not hold for them is forgotten."""
    said = f"{hello.device}, {hello.ranks} rank{'s' * (hello.ranks != 1)}"
    kept = parts.standing.halving
    if kept is None:
        return said
    if not kept.halving.holds(hello.device, hello.memory_bytes):
        _forget(parts, "it was found on another device, or with less of its memory free")
        return said
    if hello.micro_batch != kept.halving.micro_batch:
        return said
    return (
        f"{said}; micro-batch {hello.micro_batch}, found by halving on {kept.day} "
        f"(--micro-batch N, or removing {parts.home.halving}, forgets it)"
    )


def settings_of(config: TrainerConfig, ranks: int) -> Digest:
    """A name for all that a trainer's memory depends on beside its device, and for more: who
    forgets too often loses minutes.
    """
    alike = replace(config, micro_batch=0, halving=None, state_folder="")
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""  # It is where torchrun is.
    return digest_of(f"{p2ptrain.__version__} {torch} {ranks} {alike.to_json()}".encode())


def _forget(parts: Parts, reason: str) -> None:
    parts.standing.halving = None
    with suppress(OSError):  # It is a hint, and no reason to end.
        parts.home.halving.unlink(missing_ok=True)
    parts.journal.write("halving-forgotten", reason=reason)


def _read(path: Path) -> Kept:
    with path.open("rb") as file:
        tree = json.loads(file.read(FILE_BYTES_MAX))
    day = date.fromisoformat(tree["day"]).isoformat()
    return Kept(tree["settings"], day, Halving(**tree["halving"]))
