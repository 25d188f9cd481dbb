"""Measure proofs: which lies they find, and whether they accept every honest peer.

`scripts/trust` runs the parts that `registry` lists and prints a table. For a new kind of proof,
add a module and a line in the registry.
"""
