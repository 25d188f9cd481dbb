"""Documents that the organiser signs after publishing a run. The same checks apply to each kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from p2ptrain.errors import RemoteProtocolError, RunMismatch
from p2ptrain.identity import Identity
from p2ptrain.run import Allowlist, Amendment, JoinRequest, Run, SignedAllowlist, SignedAmendment
from p2ptrain.run.allowlist import ALLOWLIST_BYTES_MAX
from p2ptrain.run.amendment import AMENDMENT_BYTES_MAX
from p2ptrain.run.join_request import BYTES_MAX
from p2ptrain.run.manifest import SIGNED_BYTES_MAX


def allowlist(signer: Identity, run: Run) -> bytes:
    return SignedAllowlist.publish(signer, Allowlist.of(run.id, 9, [signer.peer])).to_bytes()


def amendment(signer: Identity, run: Run) -> bytes:
    return SignedAmendment.publish(signer, Amendment(run.id, 1, 2, lr=0.001), run).to_bytes()


Make = Callable[[Identity, Run], bytes]
Read = Callable[[bytes, Run], object]

DOCUMENTS = pytest.mark.parametrize(
    ("kind", "make", "read", "code"),
    [
        ("allowlist", allowlist, SignedAllowlist.from_bytes, "ALLOWLIST-SIGNER"),
        ("amendment", amendment, SignedAmendment.from_bytes, "AMEND-SIGNER"),
    ],
    ids=["allowlist", "amendment"],
)


@DOCUMENTS
def test_document_signed_by_a_stranger_is_refused(
    kind: str, make: Make, read: Read, code: str, run: Run, stranger: Identity
) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read(make(stranger, run), run)
    assert caught.value.code == code
    assert caught.value.what.startswith(f"this {kind} is signed by ")
    assert caught.value.what.endswith(
        f"but the organiser of run {run.manifest.name!r} is a different peer"
    )


@DOCUMENTS
def test_document_of_a_different_run_is_recognised(
    kind: str, make: Make, read: Read, code: str, run: Run, organiser: Identity
) -> None:
    other = Run.publish(organiser, dataclasses.replace(run.manifest, name="other"))
    with pytest.raises(RunMismatch) as caught:
        read(make(organiser, other), run)
    assert caught.value.evidence == (f"it is for run {other.id}", f"this is run {run.id}")
    assert caught.value.do == f"use the {kind} that was created in this run's home"


@DOCUMENTS
def test_altered_document_is_refused(
    kind: str, make: Make, read: Read, code: str, run: Run, organiser: Identity
) -> None:
    data = bytearray(make(organiser, run))
    data[-1] ^= 1
    with pytest.raises(RemoteProtocolError):
        read(bytes(data), run)


@pytest.mark.parametrize(
    ("read", "bytes_max"),
    [
        (SignedAllowlist.from_bytes, ALLOWLIST_BYTES_MAX),
        (SignedAmendment.from_bytes, AMENDMENT_BYTES_MAX),
        (lambda data, run: JoinRequest.from_bytes(data), BYTES_MAX),
        (lambda data, run: Run.from_bytes(data), SIGNED_BYTES_MAX),
    ],
    ids=["allowlist", "amendment", "join request", "manifest"],
)
def test_oversized_document_is_not_even_parsed(read: Read, bytes_max: int, run: Run) -> None:
    with pytest.raises(RemoteProtocolError, match="too long"):
        read(bytes(bytes_max + 1), run)
    with pytest.raises(RemoteProtocolError, match=r"canonical|not msgpack|a map was expected"):
        read(bytes(bytes_max), run)
