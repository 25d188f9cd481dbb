"""Proofs about the work of peers: how they are made and checked, without clocks, disks or networks."""
