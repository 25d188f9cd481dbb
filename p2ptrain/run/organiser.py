"""Decode documents that organisers sign after publishing a run: allowlists, amendments and others.

Such documents may come from any peer. This module checks the length, the organisers' signatures,
and that the document is for this run. `allowlist` and `amendment` check the content.

A run may have several organisers, and require that several of them sign an allowlist or an
amendment. A document that lacks signatures is a *proposal* (`proposal`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

from p2ptrain.encoding import unpack
from p2ptrain.errors import RemoteProtocolError, RunMismatch, counted
from p2ptrain.ids import RunId
from p2ptrain.names import label
from p2ptrain.run.co_organisers import ORGANISERS_MAX
from p2ptrain.run.envelope import Signed
from p2ptrain.run.published_run import Run
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
    signatures_min: int = 1,
    optional: Collection[str] = (),
) -> tuple[T, Signed]:
    """Return the document in `data`, and its envelope. `code` is the error code for a wrong signer.
    At least `signatures_min` organisers must have signed. For `optional`, see `from_plain`.

    Raises:
        RunMismatch: it is a valid document of another run.
        RemoteProtocolError: it is longer than `bytes_max`, malformed, altered, or not signed by
            enough of the run's organisers.
    """
    signed = Signed.from_bytes(data, kind=kind, bytes_max=bytes_max, signatures_max=ORGANISERS_MAX)
    _check_ever(signed, run, code)
    payload = unpack(signed.payload, bytes_max=bytes_max)
    said = from_plain(document, payload, f"the {kind}", optional=optional)
    if said.run != run.id:
        raise RunMismatch(
            f"this {kind} belongs to a different run of the same organiser",
            evidence=[f"it is for run {said.run}", f"this is run {run.id}"],
            do=f"use the {kind} that was created in this run's home",
        )
    _check_now(signed, run, said, code, signatures_min)
    return said, signed


def _check_ever(signed: Signed, run: Run, code: str) -> None:
    """Raise RemoteProtocolError with `code` unless all signers are or were organisers."""
    for signer in signed.signers:
        if run.seat_of(signer) not in run.manifest.organiser_keys:
            raise RemoteProtocolError(
                f"this {signed.kind} is signed by {label(signer)}, but the organiser of run "
                f"{run.manifest.name!r} is a different peer",
                code=code,
            )


def _check_now(signed: Signed, run: Run, said: object, code: str, signatures_min: int) -> None:
    """Raise RemoteProtocolError with `code` if a key signed `said` that had been replaced, or if
    too few organisers signed."""
    sequence = getattr(said, "sequence", None)
    amendment = getattr(said, "number", None)
    for signer in signed.signers:
        if not run.may_sign(signer, sequence=sequence, amendment=amendment):
            raise RemoteProtocolError(
                f"this {signed.kind} is signed with an organiser's key that has been replaced",
                code=code,
            )
    seats = {run.seat_of(signer) for signer in signed.signers}
    if len(seats) < signatures_min:
        raise RemoteProtocolError(
            f"this {signed.kind} has {counted(len(seats), 'signature')}, but "
            f"{signatures_min} organisers of run {run.manifest.name!r} must sign it",
            code=code,
        )
