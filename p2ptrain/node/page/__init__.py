"""Run the process that serves the node's page."""
