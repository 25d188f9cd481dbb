"""A float32 vector in a memfd, which is memory that other processes can map.

The memory exists as long as any process has a descriptor or a mapping of it. So a killed trainer
does not destroy it, and a killed node does not leave files in /dev/shm. Its size is sealed, so that
no process can shrink it while another reads it, which would kill the reader with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Self

import numpy as np
from numpy.typing import NDArray

from p2ptrain.errors import MachineUnfit
from p2ptrain.state.layout import NUMEL_MAX

Float32Vector = NDArray[np.float32]

BYTES_PER_ELEMENT = 4


class SharedVector:
    """`numel` float32 elements, initially zero: the numpy view `array`, and `fd` for subprocesses.

    Pass `fd` through `subprocess.Popen(pass_fds=…)`. In the subprocess, `SharedVector.attach(fd,
    numel)` or an mmap of `4 · numel` bytes from offset 0 shows the same memory. Pages that were
    never accessed do not take memory. After `close`, existing views stay valid.
    """

    _fd = -1

    def __init__(self, numel: int, *, name: str = "p2ptrain") -> None:
        assert 0 < numel <= NUMEL_MAX
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, numel * BYTES_PER_ELEMENT)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._map(descriptor, numel)
        except OSError as exc:
            os.close(descriptor)
            raise MachineUnfit(
                f"cannot allocate shared memory for {numel} parameters",
                code="MEM-HOST",
                evidence=[f"memfd of {numel * BYTES_PER_ELEMENT} bytes: {exc.strerror}"],
                likely="this machine has too little memory for the model",
                do="free memory, or use a machine with more memory",
            ) from exc

    @classmethod
    def attach(cls, fd: int, numel: int) -> Self:
        """Return a vector over an inherited descriptor, which the vector owns from now on."""
        vector = cls.__new__(cls)
        vector._map(fd, numel)
        return vector

    def _map(self, descriptor: int, numel: int) -> None:
        self._mapping = mmap.mmap(descriptor, numel * BYTES_PER_ELEMENT)
        self._fd = descriptor
        self.array: Float32Vector = np.frombuffer(self._mapping, dtype=np.float32)

    @property
    def fd(self) -> int:
        assert self._fd >= 0, "the vector is closed"
        return self._fd

    @property
    def numel(self) -> int:
        return len(self.array)

    @property
    def bytes_view(self) -> memoryview:
        """The same memory as bytes, writable."""
        return memoryview(self._mapping)

    def close(self) -> None:
        """Release the descriptor, as the destructor does. The memory is freed when no process has a
        descriptor or a view of it any more.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
