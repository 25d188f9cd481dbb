"""Keep and prune decided entries, fetch missing ones, and start from a base (a certified state)."""
