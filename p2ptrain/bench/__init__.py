"""Benchmarks of the parts against alternatives, measured in the same run."""
