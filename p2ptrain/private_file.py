"""Files that hold a secret: made so that only their owner can read them, and read only if so.

It does not know what the secret is.
"""

from __future__ import annotations

import os
from pathlib import Path

from p2ptrain.errors import ConfigError


def write_new(path: Path, data: bytes) -> bool:
    """Whether `data` is now at `path`, durably; False where something was there already.

    Raises OSError; then nothing is at `path` that was not there before.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync_names(path.parent)
    except OSError:
        path.unlink(missing_ok=True)  # A full disk must not leave half a key under the key's name.
        raise
    return True


def _sync_names(folder: Path) -> None:
    """Until then a power cut may leave no file at all, of however durable bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, bytes_max: int, *, what: str, code: str) -> bytes:
    """What is at `path`, at most `bytes_max` of it; `what` and `code` are for the error.

    Raises:
        ConfigError: others can read it.
        OSError: we cannot.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"{what} {path} can be read by others (mode {mode:o})",
                code=code,
                likely="the file was copied or restored with the wrong mode",
                do=f"chmod 600 {path}",
            )
        return file.read(bytes_max)
