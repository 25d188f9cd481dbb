"""Gossip among admitted peers, and its bounds.

pubsub     the router and the topics: whose messages are accepted, and who receives them
limits     what is accepted from one neighbour before anything is verified
frames     bounds on a frame before anything loops over it
control    the control messages that we act on
"""
