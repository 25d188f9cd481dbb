"""Benchmarks that compare parts of p2ptrain with alternatives in the same run."""
