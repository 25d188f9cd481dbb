"""The error for an invalid transcript or a failed expectation."""

from __future__ import annotations


class StoryFault(AssertionError):
    """A command that is invalid, or an expectation that is not met."""
