"""Proofs about the work of peers: how they are made and checked. No clocks, disks or networks."""
