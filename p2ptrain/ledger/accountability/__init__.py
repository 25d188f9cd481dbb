"""Find voters that sign contradictory votes or promises, and produce the evidence."""
