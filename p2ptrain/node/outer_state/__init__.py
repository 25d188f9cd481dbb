"""Outer parameters and momentum: apply updates, fetch what is missing, keep snapshots."""
