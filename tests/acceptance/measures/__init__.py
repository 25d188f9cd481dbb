"""Measure again what is required before an issue counts as done.

`scripts/accept NAME` runs the measures that `registry` has under that name and prints a line of
JSON for each. A later issue adds a module of measures and one line to the registry.
"""
