"""Keeping this node's ports open on its router. Owns `PortMappings`."""
