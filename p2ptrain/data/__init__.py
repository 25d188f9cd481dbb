"""From text to the blocks of tokens that a run's leases hand out, and back to arrays."""
