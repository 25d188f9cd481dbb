"""Proofs about contributions, as pure functions: without a clock, socket or disk.

claims      the signed document that fixes a contribution
"""
