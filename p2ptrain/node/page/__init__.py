"""Run the processes beside a node: one serves its page, one sends messages to its owner."""
