"""Settings that a person chooses: a run's TOML file, and the options of one node."""
