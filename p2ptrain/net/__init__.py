"""Connections, messages and discovery between peers. The only package that imports libp2p.

open_network -> Network        connect, request and handle, publish and subscribe, discover
PeerConnected, PeerDisconnected
PeerCache, newest_first        peers met before, kept on disk
"""

from __future__ import annotations

from p2ptrain.net.book import PeerCache, newest_first
from p2ptrain.net.connections import PeerConnected, PeerDisconnected
from p2ptrain.net.dialling import Accept, anybody
from p2ptrain.net.faults import DialFailed, attempt
from p2ptrain.net.network import Network, open_network

__all__ = [
    "Accept",
    "DialFailed",
    "Network",
    "PeerCache",
    "PeerConnected",
    "PeerDisconnected",
    "anybody",
    "attempt",
    "newest_first",
    "open_network",
]
