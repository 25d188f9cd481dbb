"""Branches of a run: propose one, find the branches of others, and join the one that wins."""
