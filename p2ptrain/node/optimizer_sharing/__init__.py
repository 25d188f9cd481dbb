"""Share inner optimizer states: members send theirs to a joiner."""
