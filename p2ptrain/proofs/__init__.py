"""Proofs about the work of peers, as pure functions: without clocks, sockets, disks or torch.

average        recompute any block of an update from the contributions, and name the peer that lied
signed_sums    the statement with which a peer answers for a sum that it sent
"""
