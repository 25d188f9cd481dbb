"""The exceptions of p2ptrain with their exit statuses. Other modules define a few more subclasses.

    P2PTrainError             1
    ├─ ConfigError            2   a setting or an argument is wrong
    ├─ RunMismatch            3   the peer serves a different run
    ├─ MachineUnfit           4   this machine cannot take part
    ├─ NetworkUnreachable     5   no peer could be reached
    ├─ NotAuthorised          6   not on the allowlist
    ├─ VersionMismatch        7   the run needs a different version of p2ptrain
    ├─ IdentityInUse          8   a second node with this identity
    ├─ TryLater              75   nothing is wrong, but it is not possible now
    ├─ ProtocolError              abstract
    │  ├─ LocalProtocolError   1  our own code broke the protocol: a bug
    │  └─ RemoteProtocolError  5  a peer broke the protocol: drop the peer, never crash
    ├─ PeerError              5   expected and handled: PeerUnreachable, PeerLost, PeerTooSlow
    ├─ ReduceAborted         75   an attempt to average failed
    ├─ StoreError             4   ChunkMissing, ChunkCorrupt, ManifestInvalid, StoreFull
    └─ TrainerError           4   TrainerExited (TrainerUnfit, TrainerOutOfMemory),
                                  TrainerStalled, TrainerDiverged

An error contains what a volunteer needs to know: a stable `code`, what happened, the evidence, the
likely cause, and what to do next. The CLI shows these fields; this module does not print.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import TypeVar

from p2ptrain.ids import PeerId

READABLE_BYTES_MAX = 60
REASON_CHARACTERS_MAX = 200

_LIBRARY_PLACE = re.compile(r"^\[[A-Z0-9_: ]+\] | \(_ssl\.c:\d+\)$")
"""The parts of the text of an error of the ssl module that only its authors understand."""


class P2PTrainError(Exception):
    """The base class of all errors that p2ptrain raises intentionally.

    `what` says in one sentence what happened. `evidence` consists of lines such as "tried /ip4/…
    refused after 31 ms". `peer` is the peer at fault, if there is one.
    """

    exit_code = 1
    default_code = "BUG"

    def __init__(
        self,
        what: str,
        *,
        code: str = "",
        evidence: Iterable[str] = (),
        likely: str = "",
        do: str = "",
        peer: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.peer = peer
        self.code = code or self.default_code
        self.evidence = tuple(evidence)
        self.likely = likely
        self.do = do

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}"


class ConfigError(P2PTrainError):
    exit_code = 2
    default_code = "CONFIG"


class RunMismatch(P2PTrainError):
    exit_code = 3
    default_code = "RUN-MISMATCH"


class MachineUnfit(P2PTrainError):
    exit_code = 4
    default_code = "MACHINE-UNFIT"


class NetworkUnreachable(P2PTrainError):
    exit_code = 5
    default_code = "NET-UNREACHABLE"


class NotAuthorised(P2PTrainError):
    exit_code = 6
    default_code = "AUTH-DENIED"


class VersionMismatch(P2PTrainError):
    exit_code = 7
    default_code = "RUN-VERSION"


class IdentityInUse(P2PTrainError):
    exit_code = 8
    default_code = "ID-IN-USE"


class TryLater(P2PTrainError):
    exit_code = 75
    default_code = "TRY-LATER"


class ProtocolError(P2PTrainError):
    """Abstract: this node or a peer broke the protocol. See the two subclasses."""


class LocalProtocolError(ProtocolError):
    """Our own code tried something that the protocol does not allow. This is a bug."""


class RemoteProtocolError(ProtocolError):
    """A peer sent a message that the protocol does not allow. Drop the peer; never crash."""

    exit_code = 5
    default_code = "PEER-PROTOCOL"


class PeerError(P2PTrainError):
    """An expected fault of a peer or of the connection to it. Such errors are handled and counted,
    and do not end the node."""

    exit_code = 5
    default_code = "PEER"


class PeerUnreachable(PeerError):
    default_code = "PEER-UNREACHABLE"


class PeerLost(PeerError):
    default_code = "PEER-LOST"


class PeerTooSlow(PeerError):
    default_code = "PEER-TOO-SLOW"


class ReduceAborted(P2PTrainError):
    """An attempt to average did not complete. The inputs are unchanged; the ledger decides whether
    to try again. `heard`: a neighbour reported the suspects; this node did not observe a fault
    itself."""

    exit_code = 75
    default_code = "REDUCE-ABORTED"

    def __init__(
        self,
        step: int,
        attempt: int,
        suspects: Iterable[PeerId] = (),
        reason: str = "",
        *,
        heard: bool = False,
    ) -> None:
        super().__init__(f"the exchange of outer step {step}, attempt {attempt}, stopped: {reason}")
        self.step = step
        self.attempt = attempt
        self.suspects = tuple(suspects)
        self.reason = reason
        self.heard = heard


class StoreError(P2PTrainError):
    exit_code = 4
    default_code = "STORE"


class ChunkMissing(StoreError):
    default_code = "CKPT-MISSING"


class ChunkCorrupt(StoreError):
    default_code = "CKPT-HASH"


class ManifestInvalid(StoreError):
    default_code = "CKPT-MANIFEST"


class StoreFull(StoreError):
    default_code = "DISK-LOW"


class TrainerError(P2PTrainError):
    exit_code = 4
    default_code = "TRAINER"


class TrainerExited(TrainerError):
    default_code = "TRAINER-EXITED"

    def __init__(self, returncode: int, stderr_tail: str) -> None:
        super().__init__(
            f"a trainer process {_how_it_ended(returncode)}",
            evidence=tuple(stderr_tail.splitlines()[-12:]),
        )
        self.returncode = returncode
        self.stderr_tail = stderr_tail
        if returncode == -signal.SIGKILL:
            self.likely = (
                "the machine ran out of memory; the kernel's log (dmesg) names the killed process"
            )
            self.do = (
                "close other programs; the node needs less memory with --micro-batch 1, "
                "--recompute or --precision bf16"
            )


def _how_it_ended(returncode: int) -> str:
    """Return how a process with this `returncode` ended, as a phrase. If the code is negative, a
    signal with this number ended the process."""
    if returncode == -signal.SIGKILL:
        return "was killed (SIGKILL); the kernel does this when memory runs out"
    if -returncode in set(signal.Signals):
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with exit status {returncode}"


class TrainerUnfit(TrainerExited):
    """The trainer reported a problem with this machine or with its settings. A restart would not
    help."""

    default_code = "TRAINER-UNFIT"

    def __init__(self, returncode: int, stderr_tail: str) -> None:
        super().__init__(returncode, stderr_tail)
        self.what = "the trainer cannot run on this machine or with these settings"
        self.do = "follow the advice in the trainer's last lines"


class TrainerOutOfMemory(TrainerExited):
    """The trainer ran out of memory. Unless `micro_batch`, the number of sequences at once, is
    already 1, the trainer is started again with half as many, rounded up."""

    default_code = "MEM-OOM"

    def __init__(self, returncode: int, stderr_tail: str, micro_batch: int) -> None:
        super().__init__(returncode, stderr_tail)
        sequences = counted(micro_batch, "sequence")
        self.what = f"the trainer ran out of memory with {sequences} at once"
        if micro_batch > 1:
            self.what += f"; trying {(micro_batch + 1) // 2}"
        else:
            self.do = (
                "start the node with --recompute or --precision bf16, or use a machine with more "
                "memory"
            )


class TrainerStalled(TrainerError):
    default_code = "TRAINER-STALLED"


class TrainerDiverged(TrainerError):
    default_code = "NAN"


ErrorT = TypeVar("ErrorT", bound=P2PTrainError)


def counted(count: int, one: str, many: str = "") -> str:
    """Return `count` with its noun, for messages: "1 vote", "2 votes". `many` is the plural; by
    default it is `one` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def readable(data: bytes) -> str:
    """Return bytes of a foreign program as text for users: its first line, in quotes, with `·` for
    each character that is not printable ASCII."""
    line = data.strip().split(b"\n")[0][:READABLE_BYTES_MAX].rstrip(b"\r")
    text = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in line)
    return f'"{text}"'


def reason_of(exc: BaseException) -> str:
    """Return why a foreign exception was raised, without the details that Python adds: error
    numbers, tuples, and places in the source of a library. It has at most 200 characters."""
    said = [exc.strerror] if isinstance(exc, OSError) and exc.strerror else _texts_in(exc.args)
    text = "; ".join(_LIBRARY_PLACE.sub("", each) for each in said)
    return (text or type(exc).__name__)[:REASON_CHARACTERS_MAX]


def _texts_in(values: Iterable[object]) -> list[str]:
    """Return the texts in the arguments of an exception, also in nested tuples."""
    found: list[str] = []
    for value in values:
        if isinstance(value, tuple | list):
            found += _texts_in(value)
        elif isinstance(value, bytes):
            found.append(readable(value))
        elif not isinstance(value, int) and str(value):
            found.append(str(value))
    return found


def first_error(group: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """Return the first error in a group of errors, which may be nested."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error
