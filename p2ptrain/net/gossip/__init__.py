"""Gossip among admitted peers, and its bounds.

pubsub     the router and the topics: who is heard, and who receives
limits     what is accepted of one neighbour before anything is checked
frames     bounds on a frame before anything loops over it
control    the control messages that we act on
"""
