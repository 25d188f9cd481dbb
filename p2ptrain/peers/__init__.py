"""What a node knows of its peers, sans-IO: heartbeats, incarnations, paths, complaints."""
