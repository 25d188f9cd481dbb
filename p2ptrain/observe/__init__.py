"""A node's reports about itself: a journal on disk, its state in words, and its status.

Reports do not influence the node: it works the same without them.
"""
