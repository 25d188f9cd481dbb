"""A home as it lies on disk, readable with no node running: its ledger, updates and allowlist."""
