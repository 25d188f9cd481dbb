"""Entries already decided: keep, prune, catch up, and start from a base."""
