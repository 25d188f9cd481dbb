"""Measure whether the project meets the requirements for closing an issue.

`scripts/accept NAME` runs the measurements that `registry` lists for the issue with that name, and
prints a line of JSON for each result. For a new issue, add a module and a line in the registry.
"""
