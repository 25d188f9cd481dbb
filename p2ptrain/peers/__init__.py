"""What a node knows about its peers: heartbeats, incarnations, paths, complaints. It does no
I/O."""
