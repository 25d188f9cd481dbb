"""The error that a wrong transcript raises."""

from __future__ import annotations


class StoryFault(AssertionError):
    """A command that makes no sense, or an expectation that is not met."""
