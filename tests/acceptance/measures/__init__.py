"""Measure the requirements that must hold before an issue counts as done.

`scripts/accept NAME` runs the measures that `registry` lists under that name and prints a line of
JSON for each result. A later issue adds a module of measures and a line in the registry.
"""
