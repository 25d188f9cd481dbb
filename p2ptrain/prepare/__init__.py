"""Preparation of a run: publish it, pack its data, and check its costs and this machine."""
