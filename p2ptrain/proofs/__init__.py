"""What proves that a peer's contribution is what it says: sans-IO, without a clock, socket or disk.

claims      the signed document that fixes a contribution
"""
