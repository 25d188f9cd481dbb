"""Check past averages against the contributions that their participants claimed."""
