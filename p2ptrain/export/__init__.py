"""Export weights: a folder that other programs can load, with its provenance."""
