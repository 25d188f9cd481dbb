"""The question of the owner whether an average was right (`p2ptrain verify --average`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from p2ptrain.errors import ConfigError
from p2ptrain.node.averages.checking import check_chunk
from p2ptrain.node.state.context import Context


async def check_average(context: Context, *, request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a chunk of the average of outer step `step`: the one that `number` draws. Raises
    ConfigError, TryLater: see `check_chunk`."""
    step, number = request.get("step"), request.get("number")
    if type(step) is not int or type(number) is not int or min(step, number) < 0:
        raise ConfigError("step and number must be numbers, 0 or more")
    found = await check_chunk(context, step, number)
    return asdict(found) | {"good": found.is_good, "words": found.words}
