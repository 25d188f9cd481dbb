"""Gossip among peers, all the time: heartbeats, endpoints, paths, allowlists, amendments."""
