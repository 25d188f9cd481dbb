"""Honest nodes under all attacks at once, compared with a quiet run.

`field` makes the run and starts the nodes. `quota` limits the attackers' CPU. `watch` observes the
nodes from outside, and `measures` judges the observations. The attacks themselves are in
tests/siege. They use raw sockets, and our own classes with the checks bypassed.
"""
