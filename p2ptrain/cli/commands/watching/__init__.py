"""Commands for people who watch a run."""
