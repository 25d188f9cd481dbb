"""Read and write a node's home (the folder with its files): ledger, updates and allowlist."""
