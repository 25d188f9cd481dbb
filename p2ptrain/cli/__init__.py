"""The command line: `p2ptrain COMMAND`. Results on stdout, progress and errors on stderr.

Every module here is loaded for `--help`. So none may import slow packages (torch, libp2p, trio,
pydantic, numpy) at its top; commands import what they need when they run.
"""
