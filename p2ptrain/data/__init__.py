"""Convert documents to the blocks of tokens that a run's leases assign, and blocks to arrays."""
