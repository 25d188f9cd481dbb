"""The entries of the chain, and the state of the run that they lead to: values and pure functions."""
