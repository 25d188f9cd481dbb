"""Signed statements of every voter, and evidence where two of them contradict each other."""
