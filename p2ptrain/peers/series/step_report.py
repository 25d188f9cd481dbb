"""A peer's report on one outer step: where its time went, its traffic, and its losses.

The report is the peer's own word, and is shown "as reported". It takes at most 80 bytes. It travels
in heartbeats as a text among the addresses: older versions skip an address that they cannot read,
while they would refuse an unknown field. The text names the version of its form, so that a later
form is skipped and not refused.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from p2ptrain.errors import LocalProtocolError, RemoteProtocolError

STEM = "/p2ptrain-step/"
PREFIX = f"{STEM}1/"

MS_MAX = (1 << 32) - 1
"""Maximum number of milliseconds: 49 days."""

BYTES_MAX = 1 << 53
STEP_MAX = (1 << 32) - 1
VERSION_CHARACTERS_MAX = 15

DEVICES = ("", "cpu", "cuda", "rocm", "mps", "xpu", "other")
"""The device classes. Their places in this tuple are their numbers on the wire."""

BOUNDS = {
    "loss": (0.0, 1000.0),
    "gradient_norm": (0.0, 1e12),
    "cosine": (-1.001, 1.001),
    "quantisation_error": (0.0, 1e6),
    "mfu": (0.0, 2.0),
}
"""Least and largest values. The cosine has room for rounding, and the MFU for a wrong entry in the
table of peak rates."""

_FORM = struct.Struct("<I6I2Q5fB")


@dataclass(frozen=True, slots=True)
class StepReport:
    """The work of one peer from the end of the previous outer step to the end of this one, which
    made θ the θ of `step`. None means that the peer does not know the value.

    Raises:
        LocalProtocolError: a value is out of bounds.
    """

    step: int
    train_ms: int = 0
    """Milliseconds of inner steps, without the wait for their data."""
    data_wait_ms: int = 0
    wait_ms: int = 0
    """The rest of the time: waiting for other peers, loading θ, agreeing."""
    exchange_ms: int = 0
    fetch_ms: int = 0
    """Milliseconds until the update of the step was here, if it had to be fetched."""
    apply_ms: int = 0
    bytes_up: int = 0
    """Bytes that exchanges have sent."""
    bytes_down: int = 0
    loss: float | None = None
    """Mean loss of the inner steps, in nats per token."""
    gradient_norm: float | None = None
    cosine: float | None = None
    quantisation_error: float | None = None
    mfu: float | None = None
    device: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        counts = astuple(self)[1:7]
        good = (
            0 <= self.step <= STEP_MAX
            and all(type(each) is int and 0 <= each <= MS_MAX for each in counts)
            and all(0 <= each <= BYTES_MAX for each in (self.bytes_up, self.bytes_down))
            and all(_is_within(name, getattr(self, name)) for name in BOUNDS)
            and self.device in DEVICES
            and _is_version(self.version)
        )
        if not good:
            raise LocalProtocolError(f"a step report is out of bounds: {self}")


def _is_within(name: str, value: float | None) -> bool:
    least, most = BOUNDS[name]
    return value is None or least <= value <= most  # NaN is not.


def _is_version(text: str) -> bool:
    return len(text) <= VERSION_CHARACTERS_MAX and text.isascii() and text.isprintable()


def within(name: str, value: float | None) -> float | None:
    """Return `value` if it is within the bounds of the field `name`, and otherwise None."""
    return value if _is_within(name, value) else None


def encode_report(report: StepReport) -> str:
    """Return the text of `report` for a heartbeat. It has at most 125 characters."""
    step, *counts = astuple(report)[:9]
    numbers = [getattr(report, name) for name in BOUNDS]
    known = [math.nan if each is None else each for each in numbers]
    fixed = _FORM.pack(step, *counts, *known, DEVICES.index(report.device))
    return PREFIX + base64.urlsafe_b64encode(fixed + report.version.encode()).decode()


def decode_report(text: str) -> StepReport | None:
    """Decode the text of a report; None if it is in a form of a later version.

    Raises RemoteProtocolError: the text is malformed, or a value is out of bounds."""
    if not text.startswith(PREFIX):
        return None
    try:
        data = base64.urlsafe_b64decode(text.removeprefix(PREFIX))
        *numbers, device = _FORM.unpack(data[: _FORM.size])
        # NaN stands for an unknown value. It is the only number that differs from itself.
        known = [None if each != each else each for each in numbers]
        version = data[_FORM.size :].decode("ascii")
        values: dict[str, Any] = dict(zip(NAMES, (*known, DEVICES[device], version), strict=True))
        report = StepReport(**values)
    except (binascii.Error, struct.error, ValueError, IndexError, LocalProtocolError) as exc:
        raise RemoteProtocolError("a heartbeat has a malformed step report") from exc
    if encode_report(report) != text:
        raise RemoteProtocolError("a heartbeat's step report is not in canonical form")
    return report


def without_report(texts: Sequence[str]) -> tuple[tuple[str, ...], StepReport | None]:
    """Separate the addresses of a heartbeat from its step report.

    Raises RemoteProtocolError: there are several reports, or the report is malformed."""
    found = [each for each in texts if each.startswith(STEM)]
    if len(found) > 1:
        raise RemoteProtocolError("a heartbeat has more than one step report")
    report = decode_report(found[0]) if found else None
    return tuple(each for each in texts if not each.startswith(STEM)), report


NAMES = tuple(each.name for each in fields(StepReport))
COLUMNS = NAMES[1:]
"""The names of the reported values, which are those of the columns of a series too."""
