"""Start a branch (a continuation without the lost quorum), and find and join better chains."""
