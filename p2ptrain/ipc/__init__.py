"""The messages between a node and its trainer, and the settings with which a trainer starts."""
