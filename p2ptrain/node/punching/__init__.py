"""Opening connections from both ends at the same time, through NATs. Owns `Punching`."""
