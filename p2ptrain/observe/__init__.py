"""A node's reports about itself: a journal on disk, its state in words, and its status.

Reports do not influence what the node does.
"""
