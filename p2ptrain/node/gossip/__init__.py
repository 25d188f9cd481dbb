"""Gossip among peers: heartbeats, endpoints, paths, allowlists, amendments."""
