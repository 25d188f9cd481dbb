"""Processes around the ranks: launch, supervise, watch, and find a micro-batch that fits."""
