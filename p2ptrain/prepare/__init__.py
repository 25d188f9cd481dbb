"""Everything before a run begins: publish, pack data, and check costs, memory and machine."""
