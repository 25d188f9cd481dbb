"""Weights for people who take them away: a folder for other programs, and whose word it has."""
