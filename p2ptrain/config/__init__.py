"""What a person may set: a run's TOML file, and the options of one node. Configuration is data."""
