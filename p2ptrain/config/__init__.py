"""Settings that a person makes: a run's TOML file, and the options of one node. They are data."""
