"""Convert maps that come from other peers to dataclasses with checked fields, and back.

The documents of a run are maps of plain values. A dataclass's annotations give the type of each
field; its `__post_init__` checks the values. A wrong type and a wrong value each become a
RemoteProtocolError that names the field.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from p2ptrain import encoding
from p2ptrain.errors import ConfigError, RemoteProtocolError

T = TypeVar("T")

_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "bool": bool,
    "str": str,
    "bytes": bytes,
    "float": (float, int),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (float, int, type(None)),
}
"""Types of values by annotation. A field with a `tuple` annotation is a list in the map. A field
with any other annotation (a NewType or a Literal) is a string."""


def from_plain(kind: type[T], value: object, what: str) -> T:
    """Return a `kind` with the fields of the map `value`. `what` is the document's name in errors.

    Raises RemoteProtocolError: a field is missing, unknown, of a wrong type, or invalid.
    """
    assert dataclasses.is_dataclass(kind)
    annotations = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    types = {
        name: list if text.startswith("tuple[") else _TYPES.get(text, str)
        for name, text in annotations.items()
    }
    try:
        checked = encoding.fields(value, **types)
        return kind(**{name: _settled(item, types[name]) for name, item in checked.items()})
    except (RemoteProtocolError, ConfigError, ValueError, TypeError) as exc:
        text = exc.what if isinstance(exc, RemoteProtocolError | ConfigError) else str(exc)
        raise RemoteProtocolError(f"{what}: {text}") from exc


def _settled(item: object, kind: type | tuple[type, ...]) -> object:
    """Convert lists to tuples, and ints to floats for float fields, so that all peers get equal
    values."""
    if kind is list:
        assert isinstance(item, list)
        return tuple(item)
    is_real = isinstance(kind, tuple) and float in kind
    return float(item) if is_real and isinstance(item, int) else item


def plain(value: Any) -> dict[str, object]:
    """Return a map from which `from_plain` can rebuild the dataclass `value`."""
    items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {name: list(item) if isinstance(item, tuple) else item for name, item in items.items()}
