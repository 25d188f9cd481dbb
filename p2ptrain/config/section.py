"""The base class of the tables of a run file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a run file. Unknown names are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
