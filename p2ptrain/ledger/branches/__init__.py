"""Marked branches of a run: propose one, meet another one, and join the one that wins."""
