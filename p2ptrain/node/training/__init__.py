"""The node's side of training: trainer processes, their data, and the work that they produce."""
