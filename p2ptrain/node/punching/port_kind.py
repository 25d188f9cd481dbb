"""Find out whether this node's router shows each peer another port (a symmetric NAT). Hole punching
then works only with peers that let everybody in, so connections begin with a relay.

Two or three members at different addresses are called from one local port, and each reports the
port from which the call seems to come. This happens at the start, every ten minutes, and when the
external address changes, and only while others cannot dial this node. If fewer than two members can
be called, the node's own experience counts: its ports probably change if it could not punch with
any of several members.

*Whose word is it?* That of members about this node. A liar can change the order of steps with which
this node's own connections are opened, and costs them some time. With three witnesses, one liar
alone cannot hide a port that stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import trio

from p2ptrain.address_group import site_of
from p2ptrain.dataplane import (
    DialHandle,
    Endpoint,
    ExternalAddress,
    LocalPort,
    Observation,
)
from p2ptrain.errors import PeerError, RemoteProtocolError, TryLater
from p2ptrain.node.punching.observed_ports import THREADS, observe_port, observers, own_host
from p2ptrain.node.state.context import Context
from p2ptrain.node.state.threads import in_thread

WITNESSES_MAX = 3

EVERY_S, RETRY_S = 600.0, 30.0
"""Pause in seconds after an answer, and after a try without one."""

LOOK_S = 2.0
"""Interval in seconds at which this task checks whether to ask."""


def changes_ports(seen: Sequence[ExternalAddress]) -> bool | None:
    """Return whether the router shows each peer another port. `seen` are the places at which the
    witnesses see one local port; None if there are fewer than two witnesses. If two of them agree,
    the port stays the same."""
    if len(seen) < 2:
        return None
    return len({(each.host, each.port) for each in seen}) == len(seen)


async def watch_port_kind(context: Context, look_s: float = LOOK_S) -> None:
    """Keep `Punching.changes_ports` up to date, until cancelled."""
    punching, due_s, asked_at = context.peers.punching, context.now(), ""
    told: bool | None = None
    while True:
        own = context.own_heartbeat
        moved = own.reach.external_host != asked_at
        if not own.dialable and (moved or context.now() >= due_s):
            asked_at = own.reach.external_host
            told = changes_ports(await _seen(context, witnesses(context)))
            due_s = context.now() + (RETRY_S if told is None else EVERY_S)
        found = punching.has_only_failed(context.now()) if told is None else told
        found &= not own.dialable  # If others dial this node, it does not matter.
        if found != punching.changes_ports:
            punching.changes_ports = found
            context.journal.write("ports-change", changes=found, witnessed=told is not None)
            own.send_now()
        await trio.sleep(look_s)


def witnesses(context: Context) -> list[Endpoint]:
    """Return members at different addresses, with the first one's version of IP."""
    found = observers(context, context.me)
    found = [each for each in found if (":" in each.host) == (":" in found[0].host)]
    one_each = {site_of(each.host): each for each in reversed(found)}
    return list(one_each.values())[:WITNESSES_MAX]


async def _seen(context: Context, members: Sequence[Endpoint]) -> list[ExternalAddress]:
    """Return where these members see one local port of this node."""
    if len(members) < 2:
        return []
    held = list[Observation]()
    with LocalPort(own_host(context, members[0])) as port:
        try:
            # One after another: the first connection makes the mapping, and stays open.
            for member in members:
                dialling = DialHandle()
                work = partial(observe_port, context, member, port, held, dialling)
                with suppress(PeerError, RemoteProtocolError, TryLater):
                    await in_thread(work, stop=dialling.give_up, limiter=THREADS)
        finally:
            for each in held:
                each.connection.close()
    return [each.seen for each in held]
