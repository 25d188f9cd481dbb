"""Proofs about training, as pure functions: without clock, socket, disk or torch.

average    recompute a chunk of an update from the contributions, and name the peer whose numbers
           do not follow from its inputs
"""
