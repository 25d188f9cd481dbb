"""Invite others: choose addresses for an invitation, and warn if they cannot work from elsewhere.

Behind a router, and on most rented machines, a node only knows its private addresses. It does not
ask the router for the public address, so it warns the user and says what to do.

An invitation is published, so it names only machines that are meant to be found: the node that is
asked, the run's founders, and members that do not train (seeds). Volunteers' addresses are shown
to admitted peers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2ptrain.net.addresses import Address, parse
from p2ptrain.net.invitation import Invitation, encode
from p2ptrain.net.scopes import AddressScope, scope_of
from p2ptrain.node.joining.find_run import PrintLine
from p2ptrain.node.state.context import Context
from p2ptrain.observe.cautions import Caution

WARNING = "address"

OWN_MAX = 3
"""Maximum number of this node's own addresses in an invitation. A machine with many networks would
otherwise leave no room for other machines."""


def invite(context: Context, print_line: PrintLine) -> None:
    """Print how other peers can take part. If the printed addresses cannot work for peers
    elsewhere, show a warning."""
    if not (addresses := context.network.addresses()):
        return
    best = best_of(addresses)
    print_line(f"others can take part with: p2ptrain join {encode(invitation_from(context))}")
    print_line(f"or, with an address instead of an invitation: p2ptrain node --bootstrap {best}")
    if caution := caution_about(for_most_peers(addresses)):
        context.alerts.show(WARNING, caution)


def invitation_from(context: Context) -> Invitation:
    """Return an invitation to this node's run. This node's best addresses come first, because this
    node is certainly up. Then comes one address of each other machine that serves the run.

    Those are addresses at which this node reached the peer or that the peer announced itself. So a
    liar among the members can only get its own address into the invitation."""
    me, state = context.me, context.ledger.snapshot
    own = _farthest_first(parse(text).of_peer(me) for text in context.network.addresses())
    known = context.network.known_addresses()
    seeds = [
        each.peer
        for each in context.peers.table
        if state.is_member(each.peer) and not each.heartbeat.trains
    ]
    context.draw.shuffle(seeds)  # Anybody can make a key whose peer id sorts first.
    serving = dict.fromkeys([*context.manifest.founders, *seeds])
    others = [
        _farthest_first(parse(text).of_peer(peer) for text in known.get(peer, ()))
        for peer in serving
        if peer != me
    ]
    firsts = [address for each in others for address in each[:1]]
    rests = [address for each in others for address in each[1:]]
    everything = [*own[:OWN_MAX], *firsts, *rests]
    far = [each for each in everything if scope_of(each) is not AddressScope.LOOPBACK]
    return Invitation.of(context.run, context.manifest.organiser, far or everything)


async def answer_invitation(context: Context) -> dict[str, object]:
    """Return the answer for `p2ptrain invite`: an invitation, and warnings about its addresses."""
    invitation = invitation_from(context)
    own = [str(each) for each in invitation.addresses if each.peer == context.me]
    caution = caution_about(for_most_peers(own)) if own else None
    return {
        "invitation": encode(invitation),
        "warnings": [caution.words] if caution else [],
    }


def best_of(addresses: Sequence[str]) -> str:
    """Return the address that most peers can reach: the first public one, otherwise the first of a
    local network, otherwise the first loopback address."""
    return str(_farthest_first(map(parse, addresses))[0])


def for_most_peers(addresses: Sequence[str]) -> str:
    """Return the best address that peers without IPv6 can dial too; if there is none, the best
    one."""
    return best_of([each for each in addresses if not each.startswith("/ip6/")] or addresses)


def _farthest_first(addresses: Iterable[Address]) -> list[Address]:
    """Sort addresses by how many peers can dial them. Names count as public."""

    def near(address: Address) -> int:
        scope = scope_of(address)
        return 2 if scope is AddressScope.LOOPBACK else int(bool(scope.code))

    return sorted(addresses, key=near)


def caution_about(text: str) -> Caution | None:
    """Return a warning if peers elsewhere cannot dial the address; otherwise None."""
    address = parse(text)
    scope = scope_of(address)
    if not scope.code:
        return None
    return Caution(
        scope.code,
        f"the address for other peers, {address.transport}, is {scope.words}",
        "for peers elsewhere, start this node with --announce "
        f"/ip4/PUBLIC-ADDRESS/tcp/{address.port}, an address at which they can dial it",
    )
