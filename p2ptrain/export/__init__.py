"""Export a run's weights to a folder that other programs can load, and say where they come from."""
