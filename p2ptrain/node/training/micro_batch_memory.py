"""Keep, in a file, the micro-batch that a trainer found after it ran out of memory.

Without this hint, each start of the node would first run out of memory again, which takes minutes
on a GPU. A missing or damaged file only costs those minutes. A hint that was found with different
settings, on a different device or with less free memory is deleted. A user's `--micro-batch` takes
precedence, and also deletes the hint.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import p2ptrain
from p2ptrain.errors import P2PTrainError, counted
from p2ptrain.ids import Digest
from p2ptrain.ipc.frames import Hello
from p2ptrain.ipc.trainer_config import Halving, TrainerConfig
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.trainer import FoundMicroBatch
from p2ptrain.store import digest_of

FILE_BYTES_MAX = 4096


def load_halving(context: Context, config: TrainerConfig) -> TrainerConfig:
    """Return `config` with the micro-batch that an earlier trainer with the same settings found. If
    there is no such hint, return `config` unchanged."""
    path = context.home.halving
    if not path.exists():
        return config
    try:
        kept = _read(path)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, P2PTrainError) as exc:
        context.journal.write("halving-ignored", path=path, reason=str(exc))
        return config
    if context.config.micro_batch:
        _forget(context, "--micro-batch was given")
        return config
    if kept.settings != settings_of(config, context.config.ranks):
        _forget(context, "it was found with different settings or by a different version")
        return config
    context.trainer.halving = kept
    context.journal.write("halving-recalled", day=kept.day, **asdict(kept.halving))
    return replace(config, halving=kept.halving)


def save_halving(context: Context, config: TrainerConfig, halving: Halving) -> None:
    """Save the micro-batch that a trainer with the settings `config` found. Do not save it if the
    user has set a micro-batch."""
    if context.config.micro_batch:
        return
    path, settings = context.home.halving, settings_of(config, context.config.ranks)
    kept = FoundMicroBatch(settings, date.today().isoformat(), halving)
    context.trainer.halving = kept
    try:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(kept), indent=1))
        beside.replace(path)
    except OSError as exc:
        context.journal.write("halving-not-kept", path=path, reason=str(exc))
    else:
        context.journal.write("halving-kept", path=path, **asdict(halving))


def in_words(context: Context, hello: Hello) -> str:
    """Describe the device and the micro-batch of the trainer that sent `hello`. If the saved hint
    does not fit this device, delete the hint."""
    said = f"{hello.device}, {counted(hello.ranks, 'rank')}"
    kept = context.trainer.halving
    if kept is None:
        return said
    if not kept.halving.holds(hello.device, hello.memory_bytes):
        _forget(context, "it was found on a different device or with less free memory")
        return said
    if hello.micro_batch != kept.halving.micro_batch:
        return said
    return (
        f"{said}; micro-batch {hello.micro_batch}, found by halving on {kept.day} (to forget "
        f"it, use --micro-batch N or remove {context.home.halving})"
    )


def settings_of(config: TrainerConfig, ranks: int) -> Digest:
    """Return a digest of every setting that affects the trainer's memory use. It covers more
    settings than strictly needed, since a false mismatch only costs minutes."""
    alike = replace(config, micro_batch=0, halving=None, state_folder="")
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""  # torch is installed only on the hosts on which torchrun starts the ranks.
    return digest_of(f"{p2ptrain.__version__} {torch} {ranks} {alike.to_json()}".encode())


def _forget(context: Context, reason: str) -> None:
    context.trainer.halving = None
    with suppress(OSError):  # A hint that remains costs no more than minutes.
        context.home.halving.unlink(missing_ok=True)
    context.journal.write("halving-forgotten", reason=reason)


def _read(path: Path) -> FoundMicroBatch:
    with path.open("rb") as file:
        tree = json.loads(file.read(FILE_BYTES_MAX))
    day = date.fromisoformat(tree["day"]).isoformat()
    return FoundMicroBatch(tree["settings"], day, Halving(**tree["halving"]))
