"""The knowledge of a node about its peers, sans-IO: heartbeats, incarnations, paths, complaints."""
