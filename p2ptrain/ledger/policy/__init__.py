"""Decide which entry to propose and which proposals to accept, and say why."""
