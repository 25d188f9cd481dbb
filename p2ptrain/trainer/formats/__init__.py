"""Layouts and files that the trainer shares with the node, and the first weights of a run
(genesis)."""
