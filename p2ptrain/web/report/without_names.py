"""Take the identities of peers out of a report, for runs that do not publish names.

The ledger of a run that strangers may watch names its members anyway. But a web site is read by
people who do not look into ledgers, and is kept by search engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from p2ptrain.identity import is_peer_id
from p2ptrain.ids import PeerId
from p2ptrain.names import label, peer_name

_PEER = re.compile(r"12D3KooW[1-9A-HJ-NP-Za-km-z]{44}")


def peers_in(value: object) -> Iterator[PeerId]:
    """Yield the peer ids in all texts of a JSON value, and in the names of its fields."""
    if isinstance(value, str):
        yield from (PeerId(each) for each in _PEER.findall(value) if is_peer_id(each))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from peers_in(name)
            yield from peers_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from peers_in(item)


def without_names(value: Any, known: Collection[PeerId] = ()) -> Any:
    """Return a copy of a JSON value in which each peer is called "peer 1", "peer 2" and so on,
    wherever its id or its readable name occurs. `known` are further peers that may occur by name
    only. The numbers follow the order of the ids, and mean nothing."""
    numbers = {peer: n for n, peer in enumerate(sorted({*peers_in(value), *known}), 1)}
    written = {
        words: f"peer {number}"
        for peer, number in numbers.items()
        for words in (peer, label(peer), peer_name(peer), f"…{peer[-6:]}")
    }
    if not written:
        return value
    # The longest words come first: a label contains the readable name.
    pattern = re.compile("|".join(map(re.escape, sorted(written, key=len, reverse=True))))
    return _copied(value, lambda text: pattern.sub(lambda found: written[found[0]], text))


def _copied(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _copied(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item, change) for item in value]
    return value
