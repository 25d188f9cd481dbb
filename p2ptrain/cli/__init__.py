"""The command line: `p2ptrain COMMAND`. Results on stdout, progress and errors on stderr.

Every module here is loaded for `--help`, so none may import what is slow (torch, libp2p, trio,
pydantic, numpy) at its top; commands import what they need when they run.
"""
