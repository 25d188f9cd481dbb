"""What the parts can do, measured against what else there is. Nothing here decides anything."""
