"""Refuse a home to which another user of this machine could write.

A node opens its lock, its journal and its logs by name. If another user can write to the folder,
that user can replace these files. A symbolic link can make the node overwrite a file elsewhere, and
a log with other votes can make the node contradict votes that it has sent. So all folders of the
home must belong to the node's user, and nobody else may write to them. This module does not check
the contents of files.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from p2ptrain.errors import ConfigError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def refuse_unsafe_home(root: Path, folders: Iterable[Path], *, user: int | None = None) -> None:
    """Raise ConfigError (HOME-UNSAFE) if another user could write to `root` or to those of
    `folders` that exist, or if a file in `root` is a symbolic link. The error's `do` is the command
    that repairs the home.

    A folder may be a symbolic link, since users move stores to larger disks. A file may not,
    because our code never creates such links. `user` is the id of the required owner, by default
    the user of this process.
    """
    owner = os.geteuid() if user is None else user
    for folder in (root, *(each for each in folders if each.exists())):
        _check_folder(folder, owner)
    for entry in sorted(root.iterdir()):
        if entry.is_symlink() and not entry.is_dir():
            raise _unsafe(
                root,
                f"{entry} is a symbolic link to {os.readlink(entry)}",
                do=f"rm {shlex.quote(str(entry))}",
            )


def _check_folder(folder: Path, owner: int) -> None:
    found = folder.stat()
    if found.st_uid != owner:
        raise _unsafe(
            folder,
            f"it belongs to user {found.st_uid}, and this process is user {owner}",
            do=f"chown -R {owner} {shlex.quote(str(folder))}; or run the command as user "
            f"{found.st_uid}",
        )
    if found.st_mode & OTHERS_WRITE:
        raise _unsafe(
            folder,
            f"its mode is {stat.S_IMODE(found.st_mode):o}: other users can write to it",
            do=f"chmod go-w {shlex.quote(str(folder))}",
        )


def _unsafe(folder: Path, seen: str, *, do: str) -> ConfigError:
    return ConfigError(
        f"{folder} is not safe as a home: another user could change the node's behaviour",
        code="HOME-UNSAFE",
        evidence=[seen],
        likely="the folder was created or copied by hand, or another user changed it",
        do=do,
    )
