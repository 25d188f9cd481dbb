"""The requests to join that the node in a home knows, as the user is shown them.

Everything in a request is a stranger's word. Notes and words are shortened, and characters that
control a terminal are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2ptrain.cli.control_client import send_command
from p2ptrain.cli.rendering import printable
from p2ptrain.ids import PeerId

if TYPE_CHECKING:
    from p2ptrain.archive.home import Home

NOTE_SHOWN_MAX = 80
WORD_SHOWN_MAX = 32


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """One request to join, as the node in the home knows it. `via` is the member that forwarded it,
    or None. `device` and `reach` are the peer's own word about its machine, or ""."""

    peer: PeerId
    note: str
    age_s: float
    via: PeerId | None
    device: str
    reach: str


def pending_requests(where: Home) -> list[PendingRequest]:
    """Ask the node in this home for the requests. Leave out malformed ones.

    Raises P2PTrainError: the node does not answer."""
    told = send_command(where.root, "join-requests").get("requests", [])
    found = map(_request, told if isinstance(told, list) else [])
    return [each for each in found if each is not None]


def _request(row: object) -> PendingRequest | None:
    from p2ptrain.identity import is_peer_id

    match row:
        case {"peer": str(peer), "note": str(note), "age_s": int() | float() as age_s, **rest} if (
            is_peer_id(peer)
        ):
            via = rest.get("via")
            teller = PeerId(via) if isinstance(via, str) and is_peer_id(via) else None
            shown = printable(note)[:NOTE_SHOWN_MAX]
            words = _word(rest.get("device")), _word(rest.get("reach"))
            return PendingRequest(PeerId(peer), shown, age_s, teller, *words)
    return None


def _word(word: object) -> str:
    """Return a short word; "" if a node of an earlier version does not tell it."""
    return printable(word)[:WORD_SHOWN_MAX] if isinstance(word, str) else ""
