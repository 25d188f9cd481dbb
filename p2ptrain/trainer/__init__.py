"""Trains the model between two outer steps, in processes of its own.

The only package that imports torch, and not all of it does: `supervisor`, `shapes`, `genesis` and
`schedule` are for the node and the command line, and load no torch.
"""
