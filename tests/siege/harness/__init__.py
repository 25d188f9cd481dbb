"""Honest nodes under all attacks at once, compared with a quiet run.

`field` makes the run and starts the nodes, `quota` limits the attackers' CPU, `watch` follows the
nodes from outside, `measures` judges what was seen. The attacks themselves are in tests/siege: they
are our own classes with the honest checks removed, and raw sockets.
"""
