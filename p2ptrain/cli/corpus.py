"""The text that a run file names: the standard library's sources, a file, or a folder of files."""

from __future__ import annotations

from pathlib import Path

from p2ptrain.errors import ConfigError

DOCUMENT_CHARACTERS = 8192
"""A long file is cut into documents of about this length, at line ends, so that some of it can be
kept apart for validation."""


def corpus(source: str, limit_bytes: int, *, beside: Path) -> list[str]:
    """The documents; a relative path counts from the folder `beside`.

    Raises:
        ConfigError: nothing there, or not UTF-8 text.
    """
    if source == "stdlib":
        from p2ptrain.data.text import standard_library_text

        return standard_library_text(limit_bytes)
    path = beside / Path(source).expanduser()
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    documents: list[str] = []
    for file in files:
        taken = _text(file, limit_bytes)
        limit_bytes -= len(taken.encode())
        documents += _cut(taken)
        if limit_bytes <= 0:
            break
    if not documents:
        raise ConfigError(
            f"data.source: {path} holds no text",
            code="DATA-SOURCE",
            do='set data.source to a UTF-8 text file, a folder of them, or "stdlib"',
        )
    return documents


def _text(path: Path, limit_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
        # A cut in mid-character is ours, not the file's fault.
        return data[:limit_bytes].decode(errors="ignore" if len(data) > limit_bytes else "strict")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"data.source: {path} cannot be read: {reason}",
            code="DATA-SOURCE",
            do='set data.source to a UTF-8 text file, a folder of them, or "stdlib"',
        ) from exc


def _cut(text: str) -> list[str]:
    """Documents of whole lines, each ended by the line that fills it."""
    documents, lines, characters = [], [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        characters += len(line)
        if characters >= DOCUMENT_CHARACTERS:
            documents.append("".join(lines))
            lines, characters = [], 0
    if lines:
        documents.append("".join(lines))
    return documents
