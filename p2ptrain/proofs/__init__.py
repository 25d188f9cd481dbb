"""Proofs about contributions, and rules that judge them. No part reads a clock, socket or disk."""
