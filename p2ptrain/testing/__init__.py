"""Tools for testing p2ptrain and programs built on it: groups of ledgers, published runs, demo
nodes.

They are public: a fault found in the field is best reported as a seed or a test that reproduces it.
"""
