"""The names of the control plane's protocols and topics, with their versions and size limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from p2ptrain.ids import PeerId, RunId

Handler = Callable[[PeerId, bytes], Awaitable[bytes]]
"""handler(peer, request) returns the reply to a peer's request."""

HELLO_PROTOCOL = "/p2ptrain/hello/1"
HELLO_BYTES_MAX = 1 << 20
"""Maximum size of a hello in bytes. It holds a manifest (64 kB), an allowlist of 4,096 peers (240
kB), 128 amendments (130 kB) and some addresses."""

IDENTITY_PROTOCOL = "/p2ptrain/identity/1"
"""Asks whether another process has our identity; see `duplicate_watch`."""

LEDGER_PROTOCOL = "/p2ptrain/ledger/1"
LEDGER_BYTES_MAX = 1 << 20

BASE_PROTOCOL = "/p2ptrain/base/1"
"""Asks for the base of a chain. A newcomer names it by a checkpoint that its user trusts."""


INNER_PROTOCOL = "/p2ptrain/inner/1"
"""Asks a member for its inner optimizer state; joiners use it."""

ENDPOINT_PROTOCOL = "/p2ptrain/endpoint/1"
ENDPOINT_BYTES_MAX = 4096
"""Maximum size in bytes: a certificate of at most 2 kB, and where its holder listens."""


def heartbeat_topic(run: RunId) -> str:
    """Return the topic of heartbeats. In version 2, incarnations are ordered, and heartbeats
    contain signatures that vouch for them."""
    return f"/p2ptrain/2/{run}/heartbeat"


def identity_topic(run: RunId) -> str:
    """Return the topic of challenges and proofs that members announce; see `identity_mailboxes`."""
    return f"/p2ptrain/1/{run}/identity"


def ledger_topic(run: RunId) -> str:
    """Return the topic of decided entries with their certificates."""
    return f"/p2ptrain/1/{run}/ledger"


def allowlist_topic(run: RunId) -> str:
    return f"/p2ptrain/1/{run}/allowlist"


def amendments_topic(run: RunId) -> str:
    return f"/p2ptrain/1/{run}/amendments"


def provider_key(run: RunId) -> str:
    """Return the key under which the DHT finds this run's nodes."""
    return f"p2ptrain/1/{run}"
