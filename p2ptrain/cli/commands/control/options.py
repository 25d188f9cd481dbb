"""The options of commands that change a setting of the running node."""

from __future__ import annotations

from typing import Any

import typer


def changed(names: str, metavar: str | None, what: str, unless: str = "as it is") -> Any:
    """Return an option that changes a setting. Without it, the setting stays `unless`."""
    return typer.Option(names, metavar=metavar, help=what, show_default=unless)
