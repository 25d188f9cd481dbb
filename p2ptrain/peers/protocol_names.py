"""The names of the control plane's protocols and topics, with their versions and size limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from p2ptrain.ids import PeerId, RunId

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]
"""`await handler(peer, request)` returns the reply to a peer's request."""

HELLO_PROTOCOL = "/p2ptrain/hello/1"
HELLO_BYTES_MAX = 5 << 18
"""Maximum size of a hello in bytes. It holds a manifest (64 kB), an allowlist of 4,096 peers (350
kB), 128 amendments (310 kB), 512 grants (270 kB), 32 hand-overs (60 kB) and some addresses."""

DECISION_PROTOCOL = "/p2ptrain/decision/1"
"""Tells a peer that waits for admission that the organiser has decided. The message is a signed
denial, or empty if there is a newer allowlist: then the peer asks for the list with a hello."""

IDENTITY_PROTOCOL = "/p2ptrain/identity/1"
"""Asks whether another process has our identity; see `duplicate_watch`."""

WATCH_PROTOCOL = "/p2ptrain/watch/1"
"""Asks for entries of the ledger and for signed records about the run; see
`outside/watch_messages`. Strangers may ask, if the run's manifest allows it."""

VISIT_PROTOCOL = "/p2ptrain/visit/1"
"""Asks a node to serve public weights to a stranger: the stranger sends the certificate with which
it will connect to the data plane, and gets the node's endpoint."""

LEDGER_PROTOCOL = "/p2ptrain/ledger/1"
LEDGER_BYTES_MAX = 1 << 20

CLAIM_PROTOCOL = "/p2ptrain/claim/1"
"""Asks a participant of a decided roster for the document of its claim."""
CLAIM_ASK_BYTES_MAX = 64
"""Size of a request: the digest of the claim, in hexadecimal digits."""

SKETCH_PROTOCOL = "/p2ptrain/sketch/1"
"""Two participants of an open reduce swap claims and stated sketches; see `sketch_messages`."""

SUMS_PROTOCOL = "/p2ptrain/sums/1"
"""Asks a participant of a finished reduce for the sums that were signed to it."""

BASE_PROTOCOL = "/p2ptrain/base/1"
"""Asks for a base: the ledger's state at a checkpoint, from which a newcomer starts instead of from
the first entry. The newcomer's user has named the checkpoint, because the user trusts it."""

INNER_PROTOCOL = "/p2ptrain/inner/1"
"""Asks a member for its inner optimizer state, with which a joining peer starts to train."""
INNER_ASK_BYTES_MAX = 128

FORWARD_PROTOCOL = "/p2ptrain/forward/1"
"""Passes a request on to a member that its sender cannot connect to; see `forwarded_messages`."""

PUNCH_PROTOCOL = "/p2ptrain/punch/1"
"""Two members agree to open a connection from both ends at the same time; see `punch_messages`."""

ENDPOINT_PROTOCOL = "/p2ptrain/endpoint/1"
ENDPOINT_BYTES_MAX = 4096
"""Maximum size of a message in bytes: a certificate of at most 2 kB, and where its peer listens."""

RELAY_PROTOCOL = "/p2ptrain/relay/1"
"""Asks a member to meet the asker at a relay; see `relay_messages`."""

HISTORY_PROTOCOL = "/p2ptrain/history/1"
"""Asks a member for rows of the run's history, for charts; see `series/history_pages`."""

HISTORY_EVENTS_PROTOCOL = "/p2ptrain/history-events/1"
"""Asks a member for earlier events and samples of the run; see `series/event_pages`."""

REACH_PROTOCOL = "/p2ptrain/reach/1"
"""Asks a member to connect back to both ports of the asker; see `reach_messages`."""


def heartbeat_topic(run: RunId) -> str:
    """Return the topic of heartbeats. Since version 2, the incarnations of a peer are ordered, and
    a heartbeat contains a signature over its incarnation."""
    return f"/p2ptrain/2/{run}/heartbeat"


def identity_topic(run: RunId) -> str:
    """Return the topic of challenges and proofs that members announce; see `identity_mailboxes`."""
    return f"/p2ptrain/1/{run}/identity"


def ledger_topic(run: RunId) -> str:
    """Return the topic of the ledger's decided entries with their certificates."""
    return f"/p2ptrain/1/{run}/ledger"


def allowlist_topic(run: RunId) -> str:
    return f"/p2ptrain/1/{run}/allowlist"


def amendments_topic(run: RunId) -> str:
    return f"/p2ptrain/1/{run}/amendments"


def grants_topic(run: RunId) -> str:
    """Return the topic of delegates' grants."""
    return f"/p2ptrain/1/{run}/grants"


def hand_overs_topic(run: RunId) -> str:
    """Return the topic of hand-overs of organisers' keys."""
    return f"/p2ptrain/1/{run}/hand-overs"


def samples_topic(run: RunId) -> str:
    """Return the topic of texts that members let the model write; see `outside/sample_text`."""
    return f"/p2ptrain/1/{run}/samples"


def provider_key(run: RunId) -> str:
    """Return the key under which the DHT finds this run's nodes."""
    return f"p2ptrain/1/{run}"
