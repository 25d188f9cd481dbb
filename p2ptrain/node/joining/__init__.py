"""How a node finds its run, proves that it is alone, and gets a trusted start."""
