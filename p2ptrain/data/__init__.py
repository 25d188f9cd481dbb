"""Turn documents into the blocks of tokens that a run's leases assign, and blocks into arrays."""
