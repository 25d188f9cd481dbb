"""The question whether others can connect to a node, and the answer of a member that has tried.

    asker ── the ports to try, the certificate of its data plane ──► a member at another site
    asker ◄── the address that the question came from, an outcome for each port ── that member

A question does not name an address, so it cannot make a member connect to a third party. This
module defines the messages and their bounds. It does not know who asks, when, or what an answer
proves (`reach_questions`, `reach_evidence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

from p2ptrain.encoding import fields, pack, unpack
from p2ptrain.errors import RemoteProtocolError

QUESTION_BYTES_MAX = 4096
"""Maximum size of a question in bytes: a certificate of at most 2 kB, and two ports."""
ANSWER_BYTES_MAX = 256

CERTIFICATE_BYTES_MAX = 2048
HOST_CHARACTERS_MAX = 64


class DialOutcome(StrEnum):
    """How a member's attempt to connect to one port ended."""

    REACHED = "reached"
    """The asker answered there and proved its identity."""
    REFUSED = "refused"
    """The machine at that address refused the connection."""
    SILENT = "silent"
    """Nobody answered within the deadline."""
    ELSE = "else"
    """The port is open, but a different program or peer answered there."""
    UNTRIED = "untried"
    """The member did not try. This outcome says nothing about the port."""


@dataclass(frozen=True, slots=True)
class ReachQuestion:
    """Please connect to these ports of the address that this question comes from. The data plane
    there must present `certificate_der`.

    Raises:
        RemoteProtocolError: a port or the certificate's length is out of range.
    """

    control_port: int
    data_port: int
    certificate_der: bytes

    def __post_init__(self) -> None:
        if not all(0 < port < 1 << 16 for port in (self.control_port, self.data_port)):
            raise RemoteProtocolError("a reachability question has a port that is out of range")
        if not 0 < len(self.certificate_der) <= CERTIFICATE_BYTES_MAX:
            raise RemoteProtocolError("a reachability question has an invalid certificate")


@dataclass(frozen=True, slots=True)
class ReachAnswer:
    """The question came from `host`; connecting to the two ports there ended like this.

    Raises:
        RemoteProtocolError: `host` is not an IP address.
    """

    host: str
    control: DialOutcome
    data: DialOutcome

    def __post_init__(self) -> None:
        try:
            ip_address(self.host)
        except ValueError as exc:
            raise RemoteProtocolError("a reachability answer has an invalid address") from exc
        if len(self.host) > HOST_CHARACTERS_MAX or "%" in self.host:
            raise RemoteProtocolError("a reachability answer has an invalid address")


def encode_question(question: ReachQuestion) -> bytes:
    return pack(
        {
            "control": question.control_port,
            "data": question.data_port,
            "certificate": question.certificate_der,
        }
    )


def decode_question(data: bytes) -> ReachQuestion:
    """Decode a question. Raises RemoteProtocolError if it is malformed. A question with any further
    field, such as an address, is malformed."""
    value = unpack(data, bytes_max=QUESTION_BYTES_MAX)
    wire: dict[str, Any] = {**fields(value, control=int, data=int, certificate=bytes)}
    return ReachQuestion(wire["control"], wire["data"], wire["certificate"])


def encode_answer(answer: ReachAnswer) -> bytes:
    return pack({"host": answer.host, "control": str(answer.control), "data": str(answer.data)})


def decode_answer(data: bytes) -> ReachAnswer:
    """Decode an answer. Raises RemoteProtocolError if it is malformed."""
    value = unpack(data, bytes_max=ANSWER_BYTES_MAX)
    wire: dict[str, Any] = {**fields(value, host=str, control=str, data=str)}
    return ReachAnswer(wire["host"], _outcome(wire["control"]), _outcome(wire["data"]))


def _outcome(text: str) -> DialOutcome:
    try:
        return DialOutcome(text)
    except ValueError as exc:
        raise RemoteProtocolError("a reachability answer has an unknown outcome") from exc
