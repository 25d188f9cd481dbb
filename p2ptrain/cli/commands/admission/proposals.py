"""Pass documents that need several organisers' signatures from one organiser to the next.

The first organiser's command makes a proposal: the document with one signature. The others add
theirs with `p2ptrain peers sign`. A proposal is a file, and a string too if it is short. It is not
secret, and nobody can change it. It has no effect until enough organisers have signed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from p2ptrain.cli.output import progress, result, result_json
from p2ptrain.errors import ConfigError, counted

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home
    from p2ptrain.run import Run, Signed, SignedAmendment

PREFIX = "p2ptrain-proposal:"
STRING_BYTES_MAX = 4096
"""Maximum length of a proposal that is also printed. A longer one is too long to paste."""

FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Offered:
    """A proposal as it was passed on: its file, and its string, or "" if it is too long."""

    file: Path
    text: str
    signed_by: tuple[str, ...]
    missing: int

    @property
    def facts(self) -> dict[str, object]:
        """The proposal as a map for `--json`."""
        return {
            "proposal": self.text or None,
            "file": str(self.file),
            "signed_by": list(self.signed_by),
            "signatures_missing": self.missing,
        }


def passed_on(
    where: Home, run: Run, made: SignedAmendment, *, as_json: bool, more: Mapping[str, object]
) -> bool:
    """Return False if enough organisers have signed the amendment. Otherwise pass it on as a
    proposal. `more` are further facts for `--json`."""
    if not missing_signatures(run, made.signed):
        return False
    offered = offer(where, run, made.signed, quiet=as_json)
    progress(f"the proposal is amendment {made.amendment.number}: {made.amendment.words}")
    if as_json:
        result_json({**more, **offered.facts})
    return True


def missing_signatures(run: Run, signed: Signed) -> int:
    """Return how many organisers of `run` must still sign."""
    return max(0, run.manifest.organisers.signatures_min - len(signed.signers))


def offer(where: Home, run: Run, signed: Signed, *, quiet: bool = False) -> Offered:
    """Write the proposal `signed` to a file in the home, and tell the user what to do with it.
    `quiet`: do not print the string, because the caller prints JSON."""
    data = signed.to_bytes()
    path = where.run / f"proposal-{signed.kind}-{signed.digest[:12]}"
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}") from exc
    text = PREFIX + _text(data) if len(data) <= STRING_BYTES_MAX else ""
    missing = missing_signatures(run, signed)
    offered = Offered(path, text, signed.signers, missing)
    if not quiet:
        result(text or str(path))
    others = counted(missing, "more organiser", "more organisers")
    progress(f"this {signed.kind} has no effect yet: {others} must sign it")
    given = "the string above, or the file" if text else "the file"
    progress(f"send {given} {path}, to another organiser, who runs: p2ptrain peers sign PROPOSAL")
    return offered


def read_proposal(given: str) -> bytes:
    """Return the proposal in `given`: the string, or the name of a file with it or its bytes.

    Raises ConfigError: it is neither."""
    if given.strip().startswith(PREFIX):
        return _bytes(given)
    path = Path(given).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as exc:
        raise ConfigError(
            f"{given[:80]!r} is not a proposal, and cannot be read as a file: {exc.strerror}",
            code="PROPOSAL",
            do=f"give the string that begins with {PREFIX}, or the name of the file",
        ) from exc
    if data.lstrip().startswith(PREFIX.encode()):
        return _bytes(data.decode(errors="replace"))
    return data


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    body = "".join(text.split()).removeprefix(PREFIX)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ConfigError(
            "the proposal is damaged",
            code="PROPOSAL",
            likely="a part of the string is missing",
            do="copy the whole string again, or use the file",
        ) from exc
