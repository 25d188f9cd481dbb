"""The order in which two peers try to open a data connection: dial, reverse dial, punch, relay.

Each connection has a *client*, which sends the hello, and a *server*, which answers it. The client
is the node that fetches chunks, or the opener of an edge in a reduce. Each step has two halves:

    step            the client                     the server
    dial            dials                          accepts
    reverse dial    takes the server's call        dials
    punch           offers, then calls             agrees, then calls
    relay           dials a relay                  dials the same relay

All data connections use these steps. They differ in how the server learns of a step:

    used for                   dial   reverse dial      punch          relay
    edge of a reduce           yes    by the roster     by a message   by the roster
    chunks, optimizer states   yes    by a message      by a message   by a message

Hellos, ledger messages and the messages about punching and relays go over the control plane. If two
nodes are not connected there, a common member passes them on (`node/forwarding`). So they need none
of these steps. Visitors (peers that are admitted by name and are not members) use all steps in
order to fetch chunks. Other peers only dial.

A relay of an edge that fails excuses the neighbour behind it. So a relay is used for an edge only
if neither end can be dialled: otherwise a neighbour that is down would be excused too.

*Whose word is it?* Each end says about itself whether it can be dialled, and whether its router
shows each peer another port. A lie changes only the order, and costs the liar's own connections
some time. This module is pure, and both ends of an edge compute the same sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf


class Step(StrEnum):
    DIAL = "dial"
    REVERSE_DIAL = "reverse dial"
    PUNCH = "punch"
    RELAY = "relay"


class Begins(StrEnum):
    """When a step begins. The earlier steps go on."""

    SOON = "0.3 s after the previous step, or when that one has failed"
    AFTER_CALLS = "0.3 s after both ends have begun to call each other, or when punching has failed"
    AFTER_FAILURE = "when the relay has failed"


FAILED_S, FAILED_LONG_S = 300.0, 3600.0
"""Seconds for which the relay comes before punching once punching has failed: in general, and if
the router of one end is known to show each peer another port. In the second case, punching works
only if the other end's router lets everybody in, and that does not change."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of a sequence. `is_brief`: the server cannot be dialled from other sites, but it may
    be behind the same router, where it answers at once."""

    step: Step
    begins: Begins = Begins.SOON
    is_brief: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """The knowledge about both ends that decides the order.

    `is_edge` tells an edge of a reduce from a connection for chunks. `may_punch`: whether the rules
    of membership allow punching and relays. `client_changes_ports`, `server_changes_ports`: whether
    that end's router shows each peer another port. `share_site`: whether both ends have the same
    external address. `punching_failed_s`: seconds since punching between the two last failed."""

    client_is_dialable: bool
    server_is_dialable: bool
    may_punch: bool
    is_edge: bool = False
    client_changes_ports: bool = False
    server_changes_ports: bool = False
    share_site: bool = False
    punching_failed_s: float = inf

    @property
    def changing(self) -> int:
        """The number of ends whose ports change."""
        return self.client_changes_ports + self.server_changes_ports

    @property
    def punching_failed(self) -> bool:
        """Whether punching failed lately."""
        return self.punching_failed_s < (FAILED_LONG_S if self.changing else FAILED_S)


@dataclass(frozen=True, slots=True)
class Sequence:
    """The steps in order, and why they have this order."""

    turns: tuple[Turn, ...]
    reason: str

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(each.step for each in self.turns)


def sequence(ends: Ends) -> Sequence:
    """Return the steps to try, most promising first."""
    reverse = [Turn(Step.REVERSE_DIAL)] if _may_reverse(ends) else []
    punch = [Turn(Step.PUNCH)] if ends.may_punch else []
    near = Turn(Step.DIAL, is_brief=True)
    if ends.server_is_dialable:
        return _of("the server can be dialled", Turn(Step.DIAL), *reverse, *punch)
    if reverse:
        last = () if ends.is_edge or not punch else (Turn(Step.RELAY, Begins.AFTER_CALLS),)
        return _of("only the client can be dialled", *reverse, near, *punch, *last)
    if not punch:
        return _of("neither can be dialled, and they may not punch", near)
    return _between_nats(ends, near)


def _between_nats(ends: Ends, near: Turn) -> Sequence:
    """Return the steps if neither end can be dialled. A dial of a peer behind the same router comes
    first, since it is direct and takes milliseconds."""
    punch, relay = Turn(Step.PUNCH), Turn(Step.RELAY)
    first, second = ((near,), ()) if ends.share_site else ((), (near,))
    if ends.changing == 2:
        why = "neither can be dialled, and the ports of both change"
        return _of(why, *first, relay, *second, replace(punch, begins=Begins.AFTER_FAILURE))
    if ends.punching_failed:
        return _of("neither can be dialled, and punching failed lately", near, relay, punch)
    late = replace(relay, begins=Begins.AFTER_CALLS)
    why = "neither can be dialled"
    if ends.changing:
        why += ", and the ports of one change: punching needs a router that lets everybody in"
    return _of(why, *first, punch, *second, late)


def _may_reverse(ends: Ends) -> bool:
    """Return whether the server can be told to dial the client. It knows of an edge anyway."""
    return ends.client_is_dialable and (ends.is_edge or ends.may_punch)


def _of(reason: str, *turns: Turn) -> Sequence:
    return Sequence(turns, reason)
