"""The commands that choose where a node sends messages to its owner."""
