"""How many peers that are not members a node makes room for.

Anybody can invent peers, and each costs memory, sockets and tasks. So each kind has its limit, and
members have places of their own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """The limits on peers that are not members.

    - `strangers`: connections of peers that are not admitted. They send a hello, ask to join, and
      wait.
    - `others`: connections of all peers that are not members. The rest of the host's 512 serve a
      hundred members, some with two. Without this limit, anybody could occupy all connections of
      an open run.
    - `waiting`: strangers whose gossip stream waits for admission. A connection holds at most 1 MiB
      of unread bytes (host/bounds.py).
    """

    strangers: int = 64
    others: int = 320
    waiting: int = 64


ROOM = Room()
"""The limits of a node."""
