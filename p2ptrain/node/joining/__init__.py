"""Start a node: find its run, prove that it is alone, be admitted, and get a trusted checkpoint."""
