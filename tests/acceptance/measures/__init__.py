"""Measure the requirements that must be met before an issue of the project counts as done.

`scripts/accept NAME` runs the measures that `registry` lists under that name and prints a line of
JSON for each result. For a new issue, add a module of measures and a line in the registry.
"""
