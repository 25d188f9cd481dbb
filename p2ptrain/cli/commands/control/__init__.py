"""Commands that control the node in this home, and that end a run."""
