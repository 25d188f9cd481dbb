"""The knowledge of a node about its peers: their heartbeats, restarts, paths and faults. No module
here uses sockets, clocks or files; callers pass the time, and the journal to write to."""
