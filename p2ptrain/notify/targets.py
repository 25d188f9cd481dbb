"""The places that messages go to, and the file in the home that lists them.

The file contains secrets, so only its owner can read it. A URL may be a secret too.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from p2ptrain.errors import ConfigError
from p2ptrain.private_file import read_private_file, write_new

CAUSES = ("stalled", "pending", "ended", "dropped", "disk", "loss-spike")

TARGETS_MAX = 8
"""Number of targets. Each may delay the others by the deadline of a request."""

FILE_BYTES_MAX = 65_536
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 8, 1024
TO_CHARACTERS_MAX = 2000

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """`to` is a URL, "ntfy:TOPIC", or "cmd:" and the absolute path of a program. `on` are causes.

    Raises ConfigError: a value is invalid.
    """

    name: str
    to: str
    on: tuple[str, ...]
    secret: str = ""
    """Key of the signatures of a web hook; "" if it gets none."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise _refusal(f"the name is {self.name[:40]!r}", "use a-z, 0-9 and hyphens")
        if not self.on or set(self.on) - set(CAUSES) or len(set(self.on)) < len(self.on):
            raise _refusal(f"--on is {','.join(self.on)[:80]!r}", f"name some of {_LIST}")
        _check_place(self.to)
        size = len(self.secret.encode())
        if self.secret and self.kind != "hook":
            raise _refusal("only a URL can have a secret", "leave out --secret")
        if self.secret and not SECRET_BYTES_MIN <= size <= SECRET_BYTES_MAX:
            bounds = f"{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
            raise _refusal(f"the secret has {size} bytes", f"choose a secret of {bounds}")

    @property
    def kind(self) -> str:
        """Return "hook", "ntfy" or "cmd"."""
        head, _, _ = self.to.partition(":")
        return head if head in ("ntfy", "cmd") else "hook"

    @property
    def shown(self) -> str:
        """Return where messages go, without the parts of a URL or a topic that may be secret."""
        if self.kind == "cmd":
            return self.to
        if self.kind == "ntfy":
            return "ntfy:…"
        return f"{urlsplit(self.to).scheme}://{urlsplit(self.to).hostname}/…"


_LIST = ", ".join(CAUSES)


def _refusal(what: str, do: str) -> ConfigError:
    return ConfigError(what, code="NOTIFY", do=do)


def _check_place(to: str) -> None:
    if len(to) > TO_CHARACTERS_MAX or not to.isprintable() or not to.isascii() or " " in to:
        raise _refusal(
            "the target is too long, or has characters that it cannot have", "see --help"
        )
    head, _, rest = to.partition(":")
    if head == "ntfy":
        if not _TOPIC.fullmatch(rest):
            raise _refusal("the topic of ntfy is invalid", "use letters, digits, _ and -")
    elif head == "cmd":
        if not rest.startswith("/"):
            raise _refusal("the program has no absolute path", "give the path of the program")
    else:
        _check_url(to)


def _check_url(to: str) -> None:
    try:
        parts = urlsplit(to)
        fits = parts.port != 0 and bool(parts.hostname)
    except ValueError:
        fits = False
    if not fits or parts.scheme not in ("http", "https"):
        do = "give http://… or https://…, ntfy:TOPIC, or cmd:PROGRAM"
        raise _refusal("the target is neither a URL, a topic of ntfy, nor a program", do)
    if parts.username is not None or parts.password is not None:
        raise _refusal("the URL contains a user or a password", "sign messages with --secret")


def resolved(to: str) -> str:
    """Return `to`, with the absolute path of a program.

    Raises ConfigError: `to` is invalid, or names no program that this user can run.
    """
    head, _, rest = to.partition(":")
    if head != "cmd":
        _check_place(to)
        return to
    found = shutil.which(os.path.expanduser(rest))
    if found is None:
        raise _refusal(
            f"{rest[:80]!r} is no program that you can run", "give its path, without words"
        )
    return f"cmd:{os.path.abspath(found)}"


def free_name(to: str, taken: Sequence[str]) -> str:
    """Return a name for a target that is not taken, made from its host, topic or program."""
    head, _, rest = to.partition(":")
    source = {"ntfy": "ntfy", "cmd": Path(rest).stem}.get(head) or urlsplit(to).hostname or "hook"
    base = re.sub(r"[^a-z0-9]+", "-", source.lower()).strip("-")[:30] or "hook"
    numbered = (f"{base}-{number}" for number in range(2, TARGETS_MAX + 2))
    return next(name for name in (base, *numbered) if name not in taken)


def load_targets(path: Path) -> tuple[Target, ...]:
    """Return the targets in the file; none if there is no file.

    Raises ConfigError: other users can read the file, or it is damaged or cannot be read.
    """
    try:
        data = read_private_file(path, FILE_BYTES_MAX, what="the list of targets", code="NOTIFY")
        found = [_target(each) for each in json.loads(data)["targets"]]
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise _refusal(f"{path} is damaged or cannot be read", "repair or remove it") from exc
    names = {target.name for target in found}
    if len(found) > TARGETS_MAX or len(names) < len(found):
        raise _refusal(f"{path} has too many targets, or one twice", "repair or remove it")
    return tuple(found)


def _target(tree: dict[str, Any]) -> Target:
    words = {name: tree[name] for name in ("name", "to")} | {"secret": tree.get("secret", "")}
    if not all(isinstance(each, str) for each in (*words.values(), *tree["on"])):
        raise TypeError("a value is not text")
    return Target(on=tuple(tree["on"]), **words)


def save_targets(path: Path, targets: Sequence[Target]) -> None:
    """Replace the file. Without targets, remove it.

    Raises ConfigError: there are too many targets. OSError: the file cannot be written.
    """
    if len(targets) > TARGETS_MAX:
        raise _refusal(f"there are {TARGETS_MAX} targets already", "remove one with `notify rm`")
    if targets:
        tree = {"schema": 1, "targets": [asdict(target) for target in targets]}
        replace_private(path, json.dumps(tree, indent=1).encode() + b"\n")
    else:
        path.unlink(missing_ok=True)


def replace_private(path: Path, data: bytes) -> None:
    """Replace the file at `path` by one that only its owner can read. Raises OSError."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    write_new(beside, data)
    os.replace(beside, path)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Keep other commands from changing the targets of the home `folder` at the same time."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
