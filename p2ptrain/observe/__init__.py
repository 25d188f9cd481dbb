"""A node's reports about itself: a journal on disk, its state in words, its status as one value.

None of this steers anything. It is written after the fact, and a node works the same without it.
"""
