"""Chaos: real nodes in real processes, struck at every point of the protocol.

    python -m tests.chaos.harness --help

`points` names where a node can be stopped, `gate` and `stand_ins` make a node stop there, `node` is
that node's program, `modes` has the ways to average. `place` is the network under five of them,
`crew` the five, `strike` one fault from calm to calm, `scenarios` what befalls many at once,
`verdict` judges what was seen, `report` says it.
"""
