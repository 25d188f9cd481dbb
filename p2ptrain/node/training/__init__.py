"""The trainer's side of the node: its processes, its data, and the work that it offers."""
