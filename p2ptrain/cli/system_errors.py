"""Describe system errors in words, above all those about a limit of this process or its disk."""

from __future__ import annotations

import errno

from p2ptrain.errors import MachineUnfit, P2PTrainError, StoreFull
from p2ptrain.open_files import too_few_files


def refusal(exc: OSError) -> P2PTrainError:
    """Return the error to show for a system error that no other code has translated."""
    about = f"{exc.filename}: " if exc.filename else ""
    what = f"{about}{exc.strerror or exc}"
    match exc.errno:
        case errno.EMFILE | errno.ENFILE:
            return too_few_files(what)
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return StoreFull(what, do="make room on the disk, then start again; nothing is lost")
        case errno.ENOMEM:
            return MachineUnfit(what, code="MEM-HOST", do="close other programs, or add memory")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            do = "check which user owns the file and how its disk is mounted"
        case _:
            do = "check that file or device, and start again; -v shows the full traceback"
    return MachineUnfit(what, code="OS", do=do)
