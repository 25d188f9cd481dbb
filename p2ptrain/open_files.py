"""The limit on open files of this process.

A node with too few file descriptors fails hours after its start, usually without a clear message.
So the limit is raised as far as permitted, and the node does not start if that is not enough.
"""

from __future__ import annotations

import resource

from p2ptrain.errors import MachineUnfit

FILES_WANTED = 4096
FILES_MIN = 256
"""Minimum number of open files: enough for a run of 64 members, with two connections and a few
streams for each, the store and the trainers."""


def allow_open_files() -> None:
    """Raise this process's limit on open files to what a node may need.

    Raises:
        MachineUnfit: the permitted limit is below FILES_MIN.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = permitted_files(soft, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit < FILES_MIN:
        raise too_few_files(f"this process may open {limit} files; a node needs {FILES_MIN}")


def permitted_files(soft: int, hard: int) -> int:
    """Return the number of files that a node may open under these two limits, FILES_WANTED at most
    unless the soft limit is higher."""
    if resource.RLIM_INFINITY in (soft, hard):
        return max(FILES_WANTED, soft)
    return max(soft, min(FILES_WANTED, hard))


def too_few_files(what: str) -> MachineUnfit:
    return MachineUnfit(
        what,
        code="FD-LIMIT",
        likely="a limit of the shell, of the service manager or of the container",
        do=f"run ulimit -n {FILES_WANTED}; for a service, set LimitNOFILE={FILES_WANTED}",
    )
