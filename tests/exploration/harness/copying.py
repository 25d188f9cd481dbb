"""Copy a ledger, and compute a key that is the same for ledgers that behave equally.

Both functions walk the object's attributes, so new attributes of a ledger do not require a change
here. Copies share frozen dataclasses, functions and plain values with the original, since these
objects never change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from p2ptrain.ledger.chain.rules import Rules
from p2ptrain.ledger.chain.state import LedgerState
from p2ptrain.ledger.chain.values import Certified, Entry
from p2ptrain.ledger.paxos.electorate import Electorate

DURATION = "_s"
"""Suffix of attributes that hold a duration. Other floats are points in time, and are stored in a
key relative to the current time.
"""

LEFT_OUT = frozenset(
    "_timer _shortened _is_short lapsed _tardy tardy _resend _fetch _wanted _due _catchup _said "
    "_statement_log _last_voted lost_time".split()
)
"""Attributes that are not part of a key.

Most of them control when a message is resent or a round ends, cache something that can be
recomputed, or track requests. These attributes make no difference here: every sent message can
arrive at any later time, and a round can time out at any time. `lost_time` says for how many
commits a failure is remembered, and the explored worlds end before that matters. `_statement_log`
is part of the key only if members remember the signatures of others (`Members.witnesses`).
`_last_voted` matters only after a chain has lost entries, which does not happen here.
"""


Fresh = Mapping[type, Callable[[], Any]]
"""Maps a class to a factory. In a copy, a new object from the factory replaces each instance of
the class.
"""


def copy_of(value: Any, fresh: Fresh = MappingProxyType({})) -> Any:
    """Return a copy that shares no mutable object with `value`."""
    return _copied(value, fresh, {})


def _copied(value: Any, fresh: Fresh, twins: dict[int, Any]) -> Any:
    """Copy recursively. `twins` maps object ids to copies, since two attributes can refer to one
    object.
    """
    kind: Any = type(value)
    if _is_shared(kind):
        return value
    if id(value) in twins:
        return twins[id(value)]
    if kind in fresh:
        return fresh[kind]()
    if kind in (list, set, deque):
        return kind(_copied(item, fresh, twins) for item in value)
    if kind is dict:
        return {name: _copied(item, fresh, twins) for name, item in value.items()}
    twin = twins[id(value)] = kind.__new__(kind)
    for name in _names(value):
        object.__setattr__(twin, name, _copied(getattr(value, name), fresh, twins))
    return twin


@cache
def _is_shared(kind: type) -> bool:
    if kind in (list, set, deque, dict):
        return False
    if is_dataclass(kind):
        return bool(getattr(kind, "__dataclass_params__").frozen)  # noqa: B009 (untyped)
    return not (hasattr(kind, "__slots__") or hasattr(kind, "__dict__")) or _is_plain(kind)


def _is_plain(kind: type) -> bool:
    plain = (str, bytes, int, float, bool, tuple, frozenset, type(None), Enum)
    return issubclass(kind, plain) or kind.__module__ == "builtins"


def _names(value: Any) -> Iterator[str]:
    """Yield the names of the attributes of `value`, including those of its base classes."""
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name != "__dict__" and hasattr(value, name):
                yield name
    yield from getattr(value, "__dict__", ())


def key_of(value: Any, now: float, left_out: frozenset[str] = LEFT_OUT) -> Hashable:
    """Return a key of `value`. Values with equal keys behave in the same way from now on.

    A `LedgerState` is represented by its head. Rules and functions such as signers are not part of
    the key, since they are the same in all worlds.
    """
    match value:
        case None | str() | bytes() | int() | Enum():
            return value
        case float():
            return round(value - now, 6)
        case Certified():
            return (value.entry.digest, value.certificate)
        case Entry():
            return value.digest
        case LedgerState():
            return value.head
        case Electorate():
            return value.height
        case Rules():
            return None
        case list() | tuple() | deque():
            return tuple(key_of(item, now, left_out) for item in value)
        case set() | frozenset():
            return frozenset(key_of(item, now, left_out) for item in value)
        case dict():
            return tuple((name, key_of(item, now, left_out)) for name, item in value.items())
        case _ if callable(value):
            return None
        case _:
            return _parts(value, now, left_out)


def _parts(value: Any, now: float, left_out: frozenset[str]) -> Hashable:
    names = [each.name for each in fields(value)] if is_dataclass(value) else sorted(_names(value))
    parts: list[Hashable] = [type(value).__name__]
    for name in names:
        if name in left_out:
            continue
        lasts = name.endswith(DURATION)
        parts.append(key_of(getattr(value, name), 0.0 if lasts else now, left_out))
    return tuple(parts)
