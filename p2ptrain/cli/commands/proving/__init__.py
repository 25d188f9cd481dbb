"""Commands that prove and check which weights generated a text."""
