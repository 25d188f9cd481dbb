"""What a node and its trainer say to each other, and the settings a trainer is started with."""
