"""The tables of a run file that concern people outside the run: [about], [public] and [samples].

Their values are shown on terminals, on the page and in exported model cards. So each text is one
line of printable characters, of limited length. The limits are those of `run/outside_facts`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from p2ptrain.config.section import Section


def _printable(text: str) -> str:
    """Return `text` if it has only printable characters, so that it cannot control a terminal or
    reverse the direction of the text around it."""
    if not text.isprintable():
        raise ValueError("it should be one line of printable characters")
    return text


class AboutSection(Section):
    """The [about] table: what the organiser says about the run."""

    description: Annotated[str, Field(max_length=500), AfterValidator(_printable)] = ""
    licence: Annotated[str, Field(max_length=100), AfterValidator(_printable)] = ""
    contact: Annotated[str, Field(max_length=200), AfterValidator(_printable)] = ""


class PublicSection(Section):
    """The [public] table: what people who are not admitted to the run get."""

    telemetry: bool = False
    weights: bool = False
    names: bool = False


Prompt = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]


class SamplesSection(Section):
    """The [samples] table: texts that the model continues every `every` outer steps."""

    prompts: Annotated[tuple[Prompt, ...], Field(max_length=8)] = ()
    every: Annotated[int, Field(ge=1, le=1_000_000)] = 10
