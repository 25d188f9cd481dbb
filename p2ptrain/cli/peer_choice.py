"""Find the peer that a user means by a name, a part of a peer id, or a whole peer id.

Names and ends of ids are not unique: anybody can make keys until one of them has the name of
another peer. So a short form counts only if it fits exactly one of the peers in question, and the
commands print the whole id of the peer that they have changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2ptrain.errors import ConfigError
from p2ptrain.ids import PeerId
from p2ptrain.names import peer_name

SHOWN_MAX = 12
BEGINNING = "12D3KooW"
"""The beginning of every peer id. A prefix must be longer."""

END_MIN = 6
"""Characters of the shortest end of an id that counts: as many as labels show."""


def chosen_peer(text: str, known: Iterable[PeerId], *, of: str, why_few: str = "") -> PeerId:
    """Return the peer that `text` means: a whole peer id, an address that ends in one, or the name,
    the beginning or the end of an id in `known`. `of` says in words what `known` is, such as "peers
    that ask to join". `why_few` says why `known` may be incomplete, if it is.

    Raises ConfigError: PEER-UNKNOWN or PEER-AMBIGUOUS; the evidence lists the candidates."""
    from p2ptrain.identity import is_peer_id

    whole = text.rpartition("/p2p/")[2]
    if is_peer_id(whole):
        return PeerId(whole)
    candidates = sorted(set(known))
    found = [peer for peer in candidates if _fits(text, peer)]
    if len(found) == 1:
        return found[0]
    listed = found or candidates
    evidence = [f"{peer_name(peer)}  {peer}" for peer in listed[:SHOWN_MAX]]
    if len(listed) > SHOWN_MAX:
        evidence.append(f"and {len(listed) - SHOWN_MAX} more")
    if why_few:
        evidence.append(f"the list may be incomplete: {why_few}")
    if found:
        raise ConfigError(
            f"{text[:80]!r} fits {len(found)} {of}",
            code="PEER-AMBIGUOUS",
            evidence=evidence,
            likely="two peers have the same name, or the part of the id is too short",
            do="give the whole peer id, and compare it with the one that the volunteer sent you",
        )
    raise ConfigError(
        f"{text[:80]!r} fits none of the {of}",
        code="PEER-UNKNOWN",
        evidence=evidence or [f"there are no {of}"],
        likely="it was mistyped, or that peer does not ask any more",
        do="give a name like brave-otter, the beginning of a peer id, or the whole peer id",
    )


def _fits(text: str, peer: PeerId) -> bool:
    if text.lower() == peer_name(peer):
        return True
    if len(text) > len(BEGINNING) and peer.startswith(text):
        return True
    end = text.removeprefix("…")
    return len(end) >= END_MIN and peer.endswith(end)
