"""Logs of the signed statements of every voter, and evidence if two of them contradict each
other.
"""
