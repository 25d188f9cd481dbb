"""A file with a secret is readable only by its owner, and never half-written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from p2ptrain import identity
from p2ptrain.errors import ConfigError
from p2ptrain.ipc import admission
from p2ptrain.private_file import read_private_file, write_new


def test_written_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert write_new(path, b"first")
    assert not write_new(path, b"second")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_private_file(path, 100, what="it", code="ID-MODE") == b"first"
    assert read_private_file(path, 2, what="it", code="ID-MODE") == b"fi"


def test_full_disk_leaves_no_partial_secret(tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_new(tmp_path / "secret", b"text", full)
    assert list(tmp_path.iterdir()) == []


def test_directory_entry_of_a_secret_is_synced_like_its_bytes(tmp_path: Path) -> None:
    synced: list[str] = []

    def noted(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append("name" if is_folder else "bytes")
        if is_folder:
            assert os.fstat(descriptor).st_ino == tmp_path.stat().st_ino

    assert write_new(tmp_path / "secret", b"text", noted)
    assert synced == ["bytes", "name"]


def test_secret_is_removed_if_its_directory_cannot_be_synced(tmp_path: Path) -> None:
    def fails_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input"):
        write_new(tmp_path / "secret", b"text", fails_for_folders)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
@pytest.mark.parametrize(
    ("load_or_create", "code"),
    [(identity.load_or_create, "ID-MODE"), (admission.load_or_create, "RANKS-SECRET")],
    ids=["identity", "ranks"],
)
def test_error_for_a_secret_that_others_can_read_shows_the_fix(
    load_or_create: object, code: str, mode: int, tmp_path: Path
) -> None:
    assert callable(load_or_create)
    path = tmp_path / "secret"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_or_create(path)
    assert (caught.value.code, caught.value.do) == (code, f"chmod 600 {path}")
    assert caught.value.what.endswith(f"(mode {mode:o})")
