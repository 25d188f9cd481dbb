"""The command line: `p2ptrain COMMAND`. Results on stdout, progress and errors on stderr.

Every module here is loaded for `--help`. So do not import slow packages (torch, libp2p, trio,
pydantic, numpy) at the top of a module; commands import what they need when they run.
"""
