"""Start a node: find its run, look for a duplicate, get admitted, and start from a checkpoint."""
