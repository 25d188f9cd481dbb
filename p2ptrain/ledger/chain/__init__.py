"""The entries of the chain and the state that they lead to, as values and pure functions."""
