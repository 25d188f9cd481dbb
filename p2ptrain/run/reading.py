"""Convert maps that come from other peers to dataclasses with checked fields, and back.

The documents of a run are maps of plain values. A dataclass's annotations give the type of each
field; its `__post_init__` checks the values. A wrong type and a wrong value each become a
RemoteProtocolError that names the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
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


def from_plain(kind: type[T], value: object, what: str, *, optional: Collection[str] = ()) -> T:
    """Return a `kind` with the fields of the map `value`. `what` is the document's name in errors.
    The fields in `optional` may be missing, and then have their defaults.

    Raises RemoteProtocolError: a field is missing, unknown, of a wrong type, or invalid; or it is
        optional and has its default, so that equal documents would not have equal bytes.
    """
    assert dataclasses.is_dataclass(kind)
    if optional and isinstance(value, dict):
        value = _completed(kind, value, what, optional)
    annotations = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    types = {name: _type_of(text) for name, text in annotations.items()}
    try:
        checked = encoding.fields(value, **types)
        return kind(**{name: _settled(item, types[name]) for name, item in checked.items()})
    except (RemoteProtocolError, ConfigError, ValueError, TypeError) as exc:
        text = exc.what if isinstance(exc, RemoteProtocolError | ConfigError) else str(exc)
        raise RemoteProtocolError(f"{what}: {text}") from exc


def _type_of(annotation: str) -> type | tuple[type, ...]:
    if annotation.startswith("tuple["):
        return (list, type(None)) if annotation.endswith("| None") else list
    return _TYPES.get(annotation, str)


def _completed(
    kind: type, value: dict[object, object], what: str, optional: Collection[str]
) -> dict[object, object]:
    defaults: dict[object, object] = {
        name: item for name, item in _defaults(kind).items() if name in optional
    }
    for name, item in defaults.items():
        if name in value and value[name] == item:
            raise RemoteProtocolError(f"{what}: the field {name} says nothing")
    return {**defaults, **value}


def _defaults(kind: Any) -> dict[str, object]:
    """Return the plain values of the fields of `kind` that have a default."""
    items = {field.name: field.default for field in dataclasses.fields(kind)}
    return {name: _plain(item) for name, item in items.items() if item is not dataclasses.MISSING}


def _plain(item: object) -> object:
    return list(item) if isinstance(item, tuple) else item


def _settled(item: object, kind: type | tuple[type, ...]) -> object:
    """Convert lists to tuples, and ints to floats for float fields, so that all peers get equal
    values."""
    if isinstance(item, list):
        return tuple(item)
    is_real = isinstance(kind, tuple) and float in kind
    return float(item) if is_real and isinstance(item, int) else item


def plain(value: Any, *, optional: Collection[str] = ()) -> dict[str, object]:
    """Return a map from which `from_plain` can rebuild the dataclass `value`. The fields in
    `optional` are left out if they have their defaults, as in documents of earlier versions."""
    items = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    defaults = _defaults(value) if optional else {}
    silent = {name for name in optional if items[name] == defaults[name]}
    return {name: item for name, item in items.items() if name not in silent}
