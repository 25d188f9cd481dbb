"""Knowledge about peers: heartbeats, incarnations, paths, complaints. This package does no I/O."""
