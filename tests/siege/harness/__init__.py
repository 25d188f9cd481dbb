"""Attack honest nodes in all ways at once, and compare them with nodes in a quiet run.

`field` makes the run and starts the nodes. `quota` limits the attackers' CPU. `watch` observes the
nodes from outside, and `measures` judges the observations. The attacks themselves are in
tests/siege. They use raw sockets, and our own classes with the checks bypassed.
"""
