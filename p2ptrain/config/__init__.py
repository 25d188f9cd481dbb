"""Settings made by a person: a run's TOML file, and the options of one node."""
