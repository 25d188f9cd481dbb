"""Measure which checks find which lies about contributions, and how often they are wrong."""
