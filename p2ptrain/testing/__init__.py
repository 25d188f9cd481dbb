"""For testing p2ptrain and what is built on it: a seeded simulator, groups of ledgers, the demo.

Public: a fault found in the field is best reported as a seed or a story that reproduces it.
"""
