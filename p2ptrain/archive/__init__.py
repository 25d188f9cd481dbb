"""Read a node's home from disk without a running node: ledger, updates and allowlist."""
