"""Record the messages and events of a run as readable lines, for a transcript."""

from __future__ import annotations

from collections import deque

from p2ptrain.ids import PeerId
from p2ptrain.ledger.chain.findings import Verdict
from p2ptrain.ledger.chain.values import Commit, Entry, Roster, Value
from p2ptrain.ledger.messages import messages
from p2ptrain.ledger.messages.messages import Message

LINES_MAX = 4000
"""The maximum number of lines kept. Older lines are dropped, since the end matters."""


class Trace:
    """Lines with the height that they are about; 0 for events of a node."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=LINES_MAX)

    def message(self, now: float, sender: PeerId, receiver: PeerId, message: Message) -> None:
        height = message.from_height if isinstance(message, messages.EntriesRequest) else 0
        height = getattr(message, "height", height)
        line = f"{now:9.3f}  {sender} → {receiver}  {spelled(message)}"
        self._lines.append((height, line))

    def note(self, now: float, peer: PeerId, what: str) -> None:
        self._lines.append((0, f"{now:9.3f}  {peer} {what}"))

    def since_height(self, first: int) -> list[str]:
        """Return the lines from the first one about height `first` or above. Later lines about
        lower heights are left out."""
        heights = [height for height, _ in self._lines]
        start = next((at for at, height in enumerate(heights) if height >= first), 0)
        lines = list(self._lines)[start:]
        return [text for height, text in lines if height == 0 or height >= first]


def spelled(message: Message) -> str:
    match message:
        case messages.Prepare(height, round):
            return f"prepare {height}/{round}"
        case messages.Promise(height, round, accepted):
            had = "nothing" if accepted is None else f"{accepted.round} {_entry(accepted.entry)}"
            return f"promise {height}/{round}, accepted {had}"
        case messages.Propose(round, entry):
            return f"propose {entry.height}/{round} {_entry(entry)} {spelled_value(entry.value)}"
        case messages.Accept(vote):
            return f"vote {vote.height}/{vote.round} {vote.entry[:6]}"
        case messages.Refused(height, round, _, reason):
            return f"refuse {height}/{round}: {reason}"
        case messages.Outcome(certified):
            voters = " ".join(sorted(certified.certificate.voters))
            return f"outcome {message.height} {_entry(certified.entry)}, signed by {voters}"
        case messages.EntriesRequest(from_height):
            return f"what follows {from_height - 1}?"
        case messages.Entries(height, page):
            return f"{len(page)} entries of a chain of {height}"
        case messages.Pruned(height, up_to):
            return f"a chain of {height}, with the entries up to {up_to} pruned"
        case _:
            return type(message).__name__.lower()


def spelled_value(value: Value) -> str:
    match value:
        case Roster():
            part = " ".join(value.peers) or "nobody"
            which = f"roster {value.step}.{value.attempt} of {len(value.members)}"
            terms = f", amendment {value.terms.number}" if value.terms else ""
            return f"{which}, averaging by {value.schedule}: {part}{terms}"
        case Commit():
            return f"commit {value.step}.{value.attempt} {value.update[:6]}"
        case Verdict():
            return f"verdict {value.step} about {' '.join(value.peers)}"
        case _:
            return f"skip {value.step}"


def _entry(entry: Entry) -> str:
    return entry.digest[:6]
