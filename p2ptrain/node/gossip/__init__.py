"""What peers tell each other all the time: heartbeats, endpoints, paths, allowlists, amendments."""
