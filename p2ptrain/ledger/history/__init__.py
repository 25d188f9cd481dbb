"""Keep and prune decided entries, catch up with missing ones, and start from a base."""
