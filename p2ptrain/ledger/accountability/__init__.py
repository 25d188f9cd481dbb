"""Log the signed statements of every voter, and produce evidence if two of them contradict."""
