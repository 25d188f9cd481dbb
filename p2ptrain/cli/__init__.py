"""The command line: `p2ptrain COMMAND`. Results go to stdout, progress and errors to stderr.

`p2ptrain --help` loads the module of every command. So do not import slow packages (torch, libp2p,
trio, pydantic, numpy) at the top of a module: commands import what they need when they run.
"""
