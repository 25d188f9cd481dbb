"""Chaos tests: inject faults into real nodes in real processes at every point of the protocol.

    python -m tests.chaos.harness --help

`points` lists the points where a node can be stopped. `gate` and `stand_ins` make a node stop
there, and `node` is the program of such a node. `modes` lists the sync modes. `crew` runs five
nodes on a network of `p2ptrain.testing.network_namespaces`. `strike` injects one fault, and
`scenarios` injects faults into several nodes at once. `verdict` checks the results, and `report`
prints them.
"""
