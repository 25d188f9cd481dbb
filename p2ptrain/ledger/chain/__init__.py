"""Entries of the chain and the state that results from them: pure values and pure functions."""
