"""Groups of options for a command: dataclasses whose fields are the options.

    @dataclass(frozen=True, slots=True)
    class Limits:
        up: Annotated[str | None, typer.Option("--limit-up", help="…")] = None

    @grouped
    def command(home: HomeOption, limits: Limits) -> None: ...

The parser sees one option for each field, in the order of the fields, and `command` receives its
groups. This module does not depend on any command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` for the parser, with each group replaced by the fields of the group."""
    kinds = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}

    @wraps(function)
    def command(**given: object) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        function(**given)

    flat = list(_flat(signature(function), kinds))
    command.__signature__ = Signature(flat)  # type: ignore[attr-defined]  # inspect reads it
    return command


def _flat(grouped: Signature, kinds: dict[str, type]) -> Iterator[Parameter]:
    for name, given in grouped.parameters.items():
        kind = kinds[name]
        if not is_dataclass(kind):
            yield given.replace(kind=Parameter.KEYWORD_ONLY, annotation=kind)
            continue
        hints = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            yield Parameter(
                each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
            )
