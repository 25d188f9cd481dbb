"""Write and read files that contain a secret.

Only the owner can read a new file, and a file that other users can read is refused. This module
does not know what the secret is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from p2ptrain.errors import ConfigError


def write_new(path: Path, data: bytes, fsync: Callable[[int], None] = os.fsync) -> bool:
    """Write `data` durably to the new file `path`. Return False if a file is already there.
    `fsync` writes the file with the given descriptor to the disk.

    Raises OSError: `path` could not be written. In that case, no new file remains.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            fsync(file.fileno())
        _sync_names(path.parent, fsync)
    except OSError:
        path.unlink(missing_ok=True)  # A full disk must not leave a partial key in the file.
        raise
    return True


def _sync_names(folder: Path, fsync: Callable[[int], None]) -> None:
    """Fsync `folder`. Without this, a power cut may remove a new file even after its fsync."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def read_private_file(path: Path, bytes_max: int, *, what: str, code: str) -> bytes:
    """Return the first `bytes_max` bytes of the file.

    Raises:
        ConfigError: other users can read the file. The error names the secret as `what`, and has
            the given `code`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"other users can read {what} {path} (mode {mode:o})",
                code=code,
                likely="the file was copied or restored with the wrong mode",
                do=f"chmod 600 {path}",
            )
        return file.read(bytes_max)
