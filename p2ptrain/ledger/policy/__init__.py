"""Decide which entry to propose, and which entries a voter accepts: pure functions with reasons."""
