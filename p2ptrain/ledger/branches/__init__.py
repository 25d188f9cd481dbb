"""Start a branch (a continuation without the lost quorum), find those of others, and join the
winner.
"""
