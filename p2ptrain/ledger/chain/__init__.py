"""Entries of the chain and the state that they lead to: pure values and pure functions."""
