"""Limits on the connections of peers that are not members.

Anybody can invent peers, and each costs memory, sockets and tasks. So each kind of non-member has a
limit, and the remaining connections are reserved for members.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """The limits on peers that are not members.

    - `strangers`: peers that are not admitted. They send a hello, ask to join, and wait.
    - `others`: connections of all peers that are not members. The rest of the host's 512
      connections is for a hundred members, some of which have two connections. Without this limit,
      anybody could occupy all connections of a node in an open run.
    - `waiting`: strangers whose gossip stream waits for admission. Each of their connections holds
      at most 1 MiB of unread bytes (host/bounds.py), so 64 of them hold at most 64 MiB.
    """

    strangers: int = 64
    others: int = 320
    waiting: int = 64


ROOM = Room()
"""The limits of a node. Tests use smaller ones."""
