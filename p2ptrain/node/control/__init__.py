"""The control socket, the status, leaving, and warnings to the node's owner."""
