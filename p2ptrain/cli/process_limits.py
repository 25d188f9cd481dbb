"""Raise the process limits before a node starts, and describe system errors in words.

A node with too few file descriptors fails hours after its start, usually without a clear message.
So the limit is raised as far as permitted, and the node does not start if that is not enough.
"""

from __future__ import annotations

import errno
import resource

from p2ptrain.errors import MachineUnfit, P2PTrainError, StoreFull

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
    most = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        raise _too_few_files(f"this process may open {soft} files; a node needs {FILES_MIN}")


def refusal(exc: OSError) -> P2PTrainError:
    """Return the error to show for a system error that no other code has translated."""
    about = f"{exc.filename}: " if exc.filename else ""
    what = f"{about}{exc.strerror or exc}"
    match exc.errno:
        case errno.EMFILE | errno.ENFILE:
            return _too_few_files(what)
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFull(what, do="make room on the disk, then start again; nothing is lost")
        case errno.ENOMEM:
            return MachineUnfit(what, code="MEM-HOST", do="close other programs, or add memory")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            do = "check which user owns the file and how its disk is mounted"
        case _:
            do = "check that file or device, and start again; -v shows the full traceback"
    return MachineUnfit(what, code="OS", do=do)


def _too_few_files(what: str) -> MachineUnfit:
    return MachineUnfit(
        what,
        code="FD-LIMIT",
        likely="a limit of the shell, of the service manager or of the container",
        do=f"run ulimit -n {FILES_WANTED}; for a service, set LimitNOFILE={FILES_WANTED}",
    )
