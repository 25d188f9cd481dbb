"""Decide which entry to propose and which to accept: pure functions that also return reasons."""
