"""`scripts/demo`: a whole run on one machine, and a verdict on it.

The nodes are real processes started with the real command line. The demo observes only what any
user can see: the journals of the nodes, and `p2ptrain status --json`.
"""
