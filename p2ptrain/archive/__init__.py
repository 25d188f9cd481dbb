"""Read a home from disk without a running node: its ledger, updates and allowlist."""
