"""The history of the run: what this node records, and what members tell a newcomer about it.

Nothing here influences what the node does.
"""
