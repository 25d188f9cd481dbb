"""The commands that show how a run goes, and what this node has contributed."""
