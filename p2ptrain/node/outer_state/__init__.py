"""Outer parameters and momentum: apply updates, fetch missing ones, and keep snapshots."""
