"""Prepare a run: publish it, pack its data, estimate its costs and check this machine."""
