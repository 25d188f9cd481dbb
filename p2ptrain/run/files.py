"""Store a run's signed documents on this machine's disk, and load them.

A document is replaced atomically: it is written to a new file, synced and renamed. An invalid
document on our own disk is not a peer's fault, so the error is a ConfigError that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from p2ptrain.encoding import pack
from p2ptrain.errors import ConfigError, RemoteProtocolError, RunMismatch
from p2ptrain.run.allowlist import ALLOWLIST_BYTES_MAX, SignedAllowlist
from p2ptrain.run.amendment import AMENDMENT_BYTES_MAX, SignedAmendment
from p2ptrain.run.denial import DENIAL_BYTES_MAX, SignedDenial
from p2ptrain.run.envelope import SIGNED_BYTES_MAX, documents_in
from p2ptrain.run.grant import GRANTS_BYTES_MAX, SignedGrant, encode_grants, grants_in
from p2ptrain.run.hand_over import HAND_OVER_BYTES_MAX, HAND_OVERS_MAX, SignedHandOver
from p2ptrain.run.published_run import Run

T = TypeVar("T")
Fsync = Callable[[int], None]
"""Writes the file with this descriptor to the disk, like `os.fsync`."""

AMENDMENTS_MAX = 128
"""Maximum number of amendments in a list: twice as many as a run can agree on."""

DENIALS_MAX = 1024
"""Maximum number of denials that an organiser keeps. Of more, the newest are kept."""

DENIALS_BYTES_MAX = DENIALS_MAX * (DENIAL_BYTES_MAX + 8)
HAND_OVERS_NAME = "hand-overs.signed"
HAND_OVERS_BYTES_MAX = HAND_OVERS_MAX * (HAND_OVER_BYTES_MAX + 8)
LISTS_MAX = 8
"""Maximum number of allowlists that wait to be merged. An organiser's node merges them at once, or,
if several organisers must sign, with the next list that its user makes."""

LISTS_BYTES_MAX = LISTS_MAX * (ALLOWLIST_BYTES_MAX + 8)
AMENDMENTS_BYTES_MAX = AMENDMENTS_MAX * (AMENDMENT_BYTES_MAX + 8)


def save_run(path: Path, run: Run) -> None:
    """Store `run` at `path`; it is durable on return."""
    _replace(path, run.to_bytes())


def load_run(path: Path) -> Run | None:
    """Return the run stored at `path`, with the hand-overs stored beside it; None if there is none.

    Raises:
        ConfigError: the file is damaged or forged.
        VersionMismatch: the run uses another protocol version.
    """
    run = _load(path, Run.from_bytes)
    if run is None:
        return None
    loaded, bytes_max = run, HAND_OVERS_BYTES_MAX
    beside = path.with_name(HAND_OVERS_NAME)
    return (
        _load(beside, lambda data: loaded.with_hand_overs(hand_overs_in(data, loaded)), bytes_max)
        or run
    )


def save_hand_overs(path: Path, hand_overs: Iterable[SignedHandOver]) -> None:
    """Store `hand_overs` at `path`; they are durable on return."""
    _replace(path, pack([each.to_bytes() for each in hand_overs]))


def hand_overs_in(data: bytes, run: Run) -> tuple[SignedHandOver, ...]:
    """Return the hand-overs of `run` in a list that may come from any peer. Whether they are valid
    is not checked here. Raises RemoteProtocolError: at least one is malformed."""
    items = documents_in(data, "hand-overs", HAND_OVERS_MAX, HAND_OVERS_BYTES_MAX)
    return tuple(SignedHandOver.from_bytes(item, run.id) for item in items)


def save_allowlist(path: Path, allowlist: SignedAllowlist) -> None:
    """Store `allowlist` at `path`; it is durable on return."""
    _replace(path, allowlist.to_bytes())


def load_allowlist(path: Path, run: Run) -> SignedAllowlist | None:
    """Return the allowlist of `run` stored at `path`; None if there is none.

    Raises ConfigError: the file is damaged or forged, or belongs to another run.
    """
    return _load(path, lambda data: SignedAllowlist.from_bytes(data, run))


def save_amendments(
    path: Path, amendments: Iterable[SignedAmendment], *, fsync: Fsync = os.fsync
) -> None:
    """Store `amendments` at `path`; they are durable on return."""
    _replace(path, pack([each.to_bytes() for each in amendments]), fsync)


def load_amendments(path: Path, run: Run) -> tuple[SignedAmendment, ...]:
    """Return the amendments of `run` stored at `path`; () if there are none.

    Raises ConfigError: the file is damaged, or an amendment is forged or belongs to another run.
    """
    return _load(path, lambda data: amendments_in(data, run), AMENDMENTS_BYTES_MAX) or ()


def amendments_in(data: bytes, run: Run) -> tuple[SignedAmendment, ...]:
    """Return the amendments of `run` in a list that may come from any peer.

    Raises:
        RunMismatch, RemoteProtocolError: at least one amendment is invalid, so the list is refused.
    """
    items = documents_in(data, "amendments", AMENDMENTS_MAX, AMENDMENTS_BYTES_MAX)
    return tuple(SignedAmendment.from_bytes(item, run) for item in items)


def save_grants(path: Path, grants: Iterable[SignedGrant]) -> None:
    """Store `grants` at `path`; they are durable on return."""
    _replace(path, encode_grants(grants))


def load_grants(path: Path, run: Run) -> tuple[SignedGrant, ...]:
    """Return the grants for `run` stored at `path`; () if there are none.

    Raises ConfigError: the file is damaged, or a grant is forged or belongs to another run.
    """
    return _load(path, lambda data: grants_in(data, run), GRANTS_BYTES_MAX) or ()


def save_lists(path: Path, lists: Iterable[SignedAllowlist]) -> None:
    """Store several allowlists at `path`; they are durable on return."""
    _replace(path, pack([each.to_bytes() for each in lists]))


def load_lists(path: Path, run: Run) -> tuple[SignedAllowlist, ...]:
    """Return the allowlists of `run` stored at `path`; () if there are none.

    Raises ConfigError: the file is damaged, or a list is forged or belongs to another run.
    """

    def lists_in(data: bytes) -> tuple[SignedAllowlist, ...]:
        items = documents_in(data, "allowlists", LISTS_MAX, LISTS_BYTES_MAX)
        return tuple(SignedAllowlist.from_bytes(item, run) for item in items)

    return _load(path, lists_in, LISTS_BYTES_MAX) or ()


def save_denials(path: Path, denials: Iterable[SignedDenial], most: int = DENIALS_MAX) -> None:
    """Store the newest `most` of `denials` at `path`; they are durable on return."""
    newest = sorted(denials, key=lambda each: each.denial.created_unix)[-most:]
    _replace(path, pack([each.to_bytes() for each in newest]))


def load_denials(path: Path, run: Run) -> tuple[SignedDenial, ...]:
    """Return the denials of `run` stored at `path`, the oldest first; () if there are none.

    Raises ConfigError: the file is damaged, or a denial is forged or belongs to another run.
    """

    def denials_in(data: bytes) -> tuple[SignedDenial, ...]:
        items = documents_in(data, "denials", DENIALS_MAX, DENIALS_BYTES_MAX)
        return tuple(SignedDenial.from_bytes(item, run) for item in items)

    return _load(path, denials_in, DENIALS_BYTES_MAX) or ()


def _load(path: Path, decode: Callable[[bytes], T], bytes_max: int = SIGNED_BYTES_MAX) -> T | None:
    """Return the decoded document at `path`; None if there is no such file. If the document
    is longer than `bytes_max`, only enough of it is read for `decode` to refuse it."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    try:
        return decode(data)
    except (RemoteProtocolError, RunMismatch) as exc:
        raise ConfigError(
            f"{path} is not the expected document: {exc.what}",
            code="RUN-FILE",
            evidence=exc.evidence,
            likely="the file was damaged, or copied from another home",
            do=f"move {path} away; the node then fetches it from its peers",
        ) from exc


def _replace(path: Path, data: bytes, fsync: Fsync = os.fsync) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The organiser's tool and a node may write the same document at the same time.
    beside = path.with_name(f"{path.name}.new.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fsync(folder)
    finally:
        os.close(folder)
