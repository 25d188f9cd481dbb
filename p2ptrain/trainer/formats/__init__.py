"""Layouts and files that the trainer shares with the node: shapes, genesis, inner state."""
