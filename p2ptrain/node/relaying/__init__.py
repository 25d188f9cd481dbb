"""Relay for members that cannot connect to each other, and connect through a relay."""
