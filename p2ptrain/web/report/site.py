"""Write the files of the report. Each file is replaced atomically, so that a web server never
sends half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from p2ptrain.errors import ConfigError

MARK = '<meta name="p2ptrain-data" content="">'
POINTED = '<meta name="p2ptrain-data" content="data.json">'
"""The line of the page that names a file with its data. It is outside scripts and styles, so their
digests in a Content-Security-Policy stay the same."""

FILES = ("index.html", "data.json", "badge.svg", "head.json")


def static_page(page: bytes) -> bytes:
    """Return the page in the form that reads `data.json` beside it instead of asking a node."""
    text = page.decode("utf-8")
    assert text.count(MARK) == 1, "the page of this package has the mark"
    return text.replace(MARK, POINTED).encode("utf-8")


def write_site(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` into `folder`, which is made if it does not exist. Other files in it stay. The
    data is written before the page that needs it.

    Raises ConfigError: the folder cannot be written.
    """
    assert set(files) <= set(FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files, key=FILES.index, reverse=True):
            _replace(folder / name, files[name])
    except OSError as exc:
        raise ConfigError(
            f"{folder} cannot be written: {exc.strerror}", do="choose another place with --out"
        ) from exc


def _replace(path: Path, data: bytes) -> None:
    """Replace the file `path`. Everybody may read it, as a web server has to."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
