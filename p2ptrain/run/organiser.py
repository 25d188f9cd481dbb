"""Decode documents that the organiser signs after publishing a run: allowlists and amendments.

Such documents may come from any peer. This module checks the length, the organiser's signature, and
that the document is for this run. `allowlist` and `amendment` check the content.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from p2ptrain.encoding import unpack
from p2ptrain.errors import RemoteProtocolError, RunMismatch
from p2ptrain.ids import RunId
from p2ptrain.names import label
from p2ptrain.run.envelope import Signed
from p2ptrain.run.manifest import Run
from p2ptrain.run.reading import from_plain


class OfRun(Protocol):
    """A dataclass that names its run, and whose fields `from_plain` checks."""

    @property
    def run(self) -> RunId: ...


T = TypeVar("T", bound=OfRun)


def said_by_organiser(
    document: type[T],
    data: bytes | memoryview,
    run: Run,
    *,
    kind: str,
    bytes_max: int,
    code: str,
    optional: Collection[str] = (),
) -> tuple[T, Signed]:
    """Return the document in `data`, and its envelope. `code` is the error code for a wrong signer.
    For `optional`, see `from_plain`.

    Raises:
        RunMismatch: it is a valid document of another run.
        RemoteProtocolError: it is longer than `bytes_max`, malformed, altered, or not signed by
            the run's organiser.
    """
    signed = Signed.from_bytes(data, kind=kind, bytes_max=bytes_max)
    if signed.signer != run.manifest.organiser:
        raise RemoteProtocolError(
            f"this {kind} is signed by {label(signed.signer)}, but the organiser of run "
            f"{run.manifest.name!r} is a different peer",
            code=code,
        )
    payload = unpack(signed.payload, bytes_max=bytes_max)
    said = from_plain(document, payload, f"the {kind}", optional=optional)
    if said.run != run.id:
        raise RunMismatch(
            f"this {kind} belongs to a different run of the same organiser",
            evidence=[f"it is for run {said.run}", f"this is run {run.id}"],
            do=f"use the {kind} that was created in this run's home",
        )
    return said, signed
