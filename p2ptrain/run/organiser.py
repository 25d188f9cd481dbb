"""What the organiser of a run says after it was published: who may take part, what changes.

One way in for all such documents, which come from anybody: bounded, signed by that organiser, and
for this run and none of their others.  What a document says is its own module's.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from p2ptrain.encoding import unpack
from p2ptrain.errors import RemoteProtocolError, RunMismatch
from p2ptrain.ids import RunId
from p2ptrain.names import label
from p2ptrain.run.envelope import Signed
from p2ptrain.run.manifest import Run
from p2ptrain.run.reading import read


class OfRun(Protocol):
    """A dataclass whose fields `read` checks, and that names its run."""

    @property
    def run(self) -> RunId: ...


T = TypeVar("T", bound=OfRun)


def said_by_organiser(
    document: type[T], data: bytes | memoryview, run: Run, *, kind: str, bytes_max: int, code: str
) -> tuple[T, Signed]:
    """The `document` in `data`, and its envelope; `code` is the error's if another signed it.

    Raises:
        RunMismatch: a proper document, of another run.
        RemoteProtocolError: longer than `bytes_max`, malformed, altered, or not signed by the
            run's organiser.
    """
    signed = Signed.from_bytes(data, kind=kind, bytes_max=bytes_max)
    if signed.signer != run.manifest.organiser:
        raise RemoteProtocolError(
            f"this {kind} is signed by {label(signed.signer)}, "
            f"who is not the organiser of run {run.manifest.name!r}",
            code=code,
        )
    said = read(document, unpack(signed.payload, bytes_max=bytes_max), f"the {kind}")
    if said.run != run.id:
        raise RunMismatch(
            f"this {kind} belongs to another run of the same organiser",
            evidence=[f"it names run {said.run}", f"this is run {run.id}"],
            do=f"use the {kind} that was made in this run's home",
        )
    return said, signed
