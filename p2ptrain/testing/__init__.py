"""Tools for testing p2ptrain and programs built on it: groups of ledgers, published runs, demo
nodes.

They are public, so that anyone can report a bug with a seed or a test that reproduces it.
"""
